// One state for the page, and the one live stream that all tabs of a browser share.
//
// A browser opens six connections to a host, so a stream for each tab would stop the seventh. The tab
// that gets the lock holds the stream and tells the others; a tab that is hidden lets go after 30 s.
import { get, signals } from "./api.js";

export const store = Object.assign(new EventTarget(), {
	me: null,
	overview: null,
	groups: new Map(),
	streams: new Map(),
	decisions: [],
	connection: "old",
	seen: 0,
});

const channel = "BroadcastChannel" in window ? new BroadcastChannel(`headrace ${location.host}`) : null;
const KEPT = 200;

function emit(name, detail) {
	store.dispatchEvent(new CustomEvent(name, { detail }));
}

function connected(state) {
	if (store.connection !== state) {
		store.connection = state;
		emit("connection", state);
	}
}

export function take(kind, data) {
	store.seen = Date.now();
	if (kind === "state") {
		store.overview = data;
		store.groups = new Map(data.groups.map((each) => [each.group, each]));
		store.streams = new Map(data.streams.map((each) => [each.stream, each]));
		store.decisions = data.decisions;
		connected(data.away ? "old" : "live");
		emit("state", data);
	} else if (kind === "change" && store.overview) {
		const before = store.overview;
		for (const each of data.groups)
			if (store.groups.has(each.group) || store.groups.size < 1000) store.groups.set(each.group, each);
		for (const each of data.streams) store.streams.set(each.stream, each);
		for (const name of data.gone_groups) store.groups.delete(name);
		for (const name of data.gone_streams) store.streams.delete(name);
		const findings = data.findings ?? before.findings;
		store.overview = {
			...before,
			look: data.look,
			seen_at: data.seen_at,
			findings,
			well: !findings.some((each) => each.needs_person),
		};
		connected("live");
		emit("change", data);
	} else if (kind === "decision") {
		store.decisions = [...store.decisions, ...data].slice(-KEPT);
		emit("decision", data);
	} else if (kind === "away") {
		if (store.overview) store.overview = { ...store.overview, away: data.away };
		connected(data.away ? "old" : "live");
		emit("away", data.away);
	}
}

let source = null;
let letGo = null;

function listen() {
	source = new EventSource("/api/v1/live?watch=overview");
	for (const kind of ["state", "change", "decision", "away"]) {
		source.addEventListener(kind, (event) => {
			const data = JSON.parse(event.data);
			take(kind, data);
			channel?.postMessage({ kind, data });
		});
	}
	source.addEventListener("bye", () => connected("lost"));
	source.addEventListener("error", () => {
		connected("lost");
		channel?.postMessage({ kind: "connection", data: "lost" });
		if (source?.readyState === EventSource.CLOSED) {
			source = null;
			setTimeout(
				() =>
					get("/me")
						.then(() => {
							if (letGo && !source) listen();
						})
						.catch((problem) => {
							if (problem.status !== 401 && letGo && !source) listen();
						}),
				2000,
			);
		}
	});
}

function unlisten() {
	source?.close();
	source = null;
}

function hold() {
	if (letGo) return;
	if (!navigator.locks) {
		letGo = () => {};
		listen();
		return;
	}
	navigator.locks.request(
		`headrace ${location.host}`,
		() =>
			new Promise((resolve) => {
				letGo = () => {
					unlisten();
					letGo = null;
					resolve();
				};
				listen();
			}),
	);
}

let wanted = false;
let hiddenTimer = 0;
document.addEventListener("visibilitychange", () => {
	clearTimeout(hiddenTimer);
	if (document.hidden)
		hiddenTimer = setTimeout(() => {
			if (letGo && navigator.locks) {
				letGo();
				wanted = false;
			}
		}, 30000);
	else if (!wanted) {
		wanted = true;
		hold();
		refresh();
	}
});

channel?.addEventListener("message", ({ data }) => {
	if (data.kind === "connection") connected(data.data);
	else if (store.overview || data.kind === "state") take(data.kind, data.data);
});

export async function refresh() {
	take("state", await get("/overview"));
}

export async function start() {
	store.me = await get("/me");
	await refresh();
	wanted = true;
	hold();
	setInterval(() => {
		if (Date.now() - store.seen > 40000 && store.connection === "live")
			get("/overview")
				.then((data) => take("state", data))
				.catch(() => connected("lost"));
	}, 10000);
}

signals.addEventListener("lost", () => connected("lost"));
export const may = (role) => !store.me?.read_only && (store.me?.roles || []).includes(role);
export const mayRead = () => (store.me?.roles || []).includes("read");
