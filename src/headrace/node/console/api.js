// Asking the node.
export class Problem extends Error {
	constructor(status, title, detail) {
		super(detail);
		this.status = status;
		this.title = title;
	}
}

export const signals = new EventTarget();
const enc = encodeURIComponent;
export const path = (...parts) => "/" + parts.map(enc).join("/");

export async function ask(method, where, { query, body } = {}) {
	const given = Object.entries(query || {}).filter(
		([, value]) => value !== "" && value !== null && value !== undefined,
	);
	const address = `/api/v1${where}${given.length ? "?" + given.map(([k, v]) => `${enc(k)}=${enc(v)}`).join("&") : ""}`;
	let answer;
	try {
		answer = await fetch(address, {
			method,
			headers: { "x-headrace": "1", ...(body ? { "content-type": "application/json" } : {}) },
			body: body ? JSON.stringify(body) : undefined,
			cache: "no-store",
		});
	} catch {
		signals.dispatchEvent(new Event("lost"));
		throw new Problem(0, "NoAnswer", "the node does not answer; this page tries again by itself");
	}
	if (answer.status === 204) return null;
	const data = await answer.json().catch(() => ({}));
	if (!answer.ok) {
		if (answer.status === 401) signals.dispatchEvent(new Event("login"));
		throw new Problem(answer.status, data.title || "Error", data.detail || `the node answered ${answer.status}`);
	}
	return data;
}
export const get = (where, query) => ask("GET", where, { query });
