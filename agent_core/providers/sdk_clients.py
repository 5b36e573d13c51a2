"""Makes the SDK client of a service. SDKs are imported here, when an endpoint is first used.

`options` are those that all clients share: no retries, no deadline, our HTTP client. Where a vendor's SDK
finds credentials by itself, as for Amazon, Google and Azure, it is given none, unless the endpoint has a key
of its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_core.providers.registry import EndpointSettings


def create_anthropic_client(settings: EndpointSettings, **options: Any) -> Any:
    """Return a client of Anthropic's own service, or of one that speaks like it."""
    import anthropic

    return anthropic.AsyncAnthropic(
        api_key=_own_key(settings) or "none", base_url=settings.base_url, open_telemetry=False, **options
    )


def create_bedrock_client(settings: EndpointSettings, **options: Any) -> Any:
    """Return a client of Anthropic's models on Amazon Bedrock; inference profiles are model names there."""
    import anthropic
    import boto3  # noqa: F401 - the SDK needs it only at the first request, when it is late to say so

    return anthropic.AsyncAnthropicBedrock(
        api_key=_own_key(settings),
        aws_region=settings.region,
        aws_profile=settings.profile,
        base_url=settings.base_url,
        open_telemetry=False,
        **options,
    )


def create_vertex_client(settings: EndpointSettings, **options: Any) -> Any:
    """Return a client of Anthropic's models on Google's Vertex AI."""
    import anthropic
    import google.auth  # noqa: F401 - as above

    given: dict[str, Any] = {"region": settings.region, "project_id": settings.project}
    return anthropic.AsyncAnthropicVertex(
        access_token=_own_key(settings),
        base_url=settings.base_url,
        open_telemetry=False,
        **{name: value for name, value in given.items() if value is not None},
        **options,
    )


def create_openai_client(settings: EndpointSettings, **options: Any) -> Any:
    """Return a client of OpenAI's own service, or of one that speaks like it."""
    import openai

    return openai.AsyncOpenAI(api_key=_own_key(settings) or "none", base_url=settings.base_url, **options)


def create_bedrock_openai_client(settings: EndpointSettings, **options: Any) -> Any:
    """Return a client of the models on Amazon Bedrock that speak like OpenAI."""
    import boto3  # noqa: F401 - as above
    import openai
    from openai.providers import bedrock

    given: dict[str, Any] = {"api_key": _own_key(settings), "base_url": settings.base_url}
    chosen = bedrock(
        region=settings.region,
        profile=settings.profile,
        **{name: value for name, value in given.items() if value is not None},
    )
    return openai.AsyncOpenAI(provider=chosen, **options)


def create_azure_client(settings: EndpointSettings, **options: Any) -> Any:
    """Return a client of OpenAI's models on Azure."""
    import openai

    given: dict[str, Any] = {"azure_endpoint": settings.base_url, "api_version": settings.api_version}
    return openai.AsyncAzureOpenAI(
        api_key=_own_key(settings),
        **{name: value for name, value in given.items() if value is not None},
        **options,
    )


def has_aws_credentials(settings: EndpointSettings) -> bool:
    """Return whether AWS's chain finds credentials; at a cloud machine it asks for those of its role."""
    import boto3

    if os.environ.get("AWS_BEARER_TOKEN_BEDROCK"):
        return True
    return boto3.Session(profile_name=settings.profile).get_credentials() is not None


def has_google_credentials(settings: EndpointSettings) -> bool:
    """Return whether Google's application default credentials are found."""
    import google.auth

    try:
        google.auth.default()
    except google.auth.exceptions.GoogleAuthError:
        return False
    return True


def has_azure_credentials(settings: EndpointSettings) -> bool:
    """Return whether a variable has a key or a token for Azure."""
    return any(os.environ.get(name) for name in ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN"))


def _own_key(settings: EndpointSettings) -> str | None:
    return None if settings.key is None else settings.key.reveal()
