// Asking the server. The token came in the address: it is kept for this tab, and taken out of the address.

const KEPT = "token";

function taken() {
  const here = new URL(location.href);
  const given = here.searchParams.get("token");
  if (given) {
    sessionStorage.setItem(KEPT, given);
    history.replaceState(null, "", `/${here.hash}`);
  }
  return sessionStorage.getItem(KEPT);
}

const token = taken();

/** What the server refused, with what would help. */
export class Refused extends Error {
  constructor(status, said) {
    super(said?.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = said?.code ?? "";
    this.hint = said?.hint ?? "";
  }
}

async function answer(response) {
  const isJson = (response.headers.get("content-type") ?? "").startsWith("application/json");
  const content = isJson ? await response.json() : { error: { message: (await response.text()).trim() } };
  if (!response.ok) throw new Refused(response.status, content.error);
  return content;
}

/** An address of parts, each escaped, with a query of what is set. */
export function address(parts, query = {}) {
  const path = parts.map(encodeURIComponent).join("/");
  const asked = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(asked).toString();
  return `/api/${path}${text ? `?${text}` : ""}`;
}

export async function get(parts, query = {}, options = {}) {
  return answer(await fetch(address(parts, query), { credentials: "same-origin", ...options }));
}

export const maySteer = () => token !== null;

const pause = (time) => new Promise((done) => setTimeout(done, time));

/** Send a command and wait for its answer in the log, as long as somebody owns the home. */
export async function steer(command) {
  const sent = await answer(await fetch("/api/control", {
    method: "POST",
    credentials: "same-origin",
    headers: { "content-type": "application/json", "x-token": token ?? "" },
    body: JSON.stringify(command),
  }));
  for (let tries = 0; tries < 300; tries += 1) {
    const said = await get(["control", sent.id], { after: sent.after });
    if (said.state === "done" || (said.state === "queued" && tries > 10)) return { ...sent, ...said };
    if (said.state === "rejected") throw new Refused(400, said.error);
    await pause(200);
  }
  throw new Refused(504, { message: "no answer in time; the command stays queued" });
}

/** Call `changed` with the log's last number each time that it grows, and `stands` with how the line is. */
export function listen(changed, stands) {
  const source = new EventSource("/api/feed");
  source.addEventListener("open", () => stands("live"));
  source.addEventListener("error", () => stands(source.readyState === EventSource.CLOSED ? "lost" : "reconnecting"));
  source.addEventListener("message", (message) => changed(JSON.parse(message.data).seq));
  return source;
}
