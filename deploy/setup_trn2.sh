#!/usr/bin/env bash
# The old name of setup_trainium.sh, which must lie beside it.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/setup_trainium.sh" "$@"
