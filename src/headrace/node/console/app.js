// The frame: navigation, search, keyboard, connection, and who gets in.
import { ask, get, signals } from "./api.js";
import { h, put, redraw, s } from "./dom.js";
import { setUtc, span, visible, zone } from "./format.js";
import { begin, go, link, route, show } from "./router.js";
import { start, store } from "./store.js";
import { define } from "./view.js";
import "./views-lists.js";
import "./view-stream.js";
import "./view-group.js";
import "./view-events.js";
import "./view-key.js";
import "./view-pipeline.js";
import "./view-sessions.js";
import "./view-epochs.js";
import "./view-regions.js";
import "./view-access.js";

const PAGES = [
	["/", "Overview", "o"],
	["/streams", "Streams", "s"],
	["/groups", "Groups", "g"],
	["/key", "Find a key", "k"],
	["/pipeline", "Pipeline", "p"],
	["/sessions", "Sessions", "e"],
	["/epochs", "Epochs", "f"],
	["/regions", "Regions", "r"],
	["/access", "Access", "a"],
];
for (const [pattern, tag] of [
	["/", "hr-overview"],
	["/streams", "hr-streams"],
	["/streams/:stream", "hr-stream"],
	["/streams/:stream/events", "hr-events"],
	["/groups", "hr-groups"],
	["/groups/:group", "hr-group"],
	["/key", "hr-key"],
	["/pipeline", "hr-pipeline"],
	["/sessions", "hr-sessions"],
	["/epochs", "hr-epochs"],
	["/regions", "hr-regions"],
	["/access", "hr-access"],
])
	route(pattern, tag);

const brand = () => h("a.brand", { href: "/" }, wave(), "Headrace");
const wave = () =>
	s(
		"svg",
		{ viewBox: "0 0 32 32", "aria-hidden": "true" },
		s("rect", { width: 32, height: 32, rx: 8, fill: "#0b7285" }),
		s("path", {
			d: "M5 11c4 0 4 3 7.5 3S16 11 20 11s4 3 7 3M5 18c4 0 4 3 7.5 3S16 18 20 18s4 3 7 3",
			fill: "none",
			stroke: "#fff",
			"stroke-width": 2.6,
			"stroke-linecap": "round",
		}),
	);

class App extends HTMLElement {
	async connectedCallback() {
		theme(localStorage.getItem("headrace.theme") || "");
		signals.addEventListener("login", () => this.login());
		const code = /[#&]code=([\w-]+)/.exec(location.hash)?.[1];
		if (code) {
			history.replaceState(null, "", location.pathname + location.search);
			try {
				await ask("POST", "/login", { body: { code } });
			} catch (problem) {
				this.login(problem.message);
				return;
			}
		}
		try {
			await start();
		} catch (problem) {
			if (problem.status !== 401) this.login(problem.message);
			return;
		}
		this.frame();
	}

	frame() {
		this.links = PAGES.map(([address, title]) =>
			h("a", { href: address }, title, h("span", { class: "count", "data-count": title })),
		);
		this.conn = h(
			"span",
			{ class: "conn", role: "status" },
			h("span", { class: "dot", "aria-hidden": "true" }),
			h("span"),
		);
		this.banner = h("div", { class: "banner", role: "alert", hidden: true });
		const main = h("main", { id: "main", tabindex: "-1" });
		const utc = h(
			"button",
			{
				class: "plain",
				"aria-pressed": String(zone.utc),
				title: "times in UTC",
				onclick: () => {
					setUtc(!zone.utc);
					utc.setAttribute("aria-pressed", String(zone.utc));
					show();
				},
			},
			"UTC",
		);
		const themes = h(
			"button",
			{
				class: "plain",
				title: "light, dark, or as the system says",
				onclick: () => theme(next(localStorage.getItem("headrace.theme") || "")),
			},
			"Theme",
		);
		put(
			this,
			h(
				"aside.side",
				brand(),
				h("nav", { "aria-label": "Pages" }, this.links),
				h(
					"div.foot",
					h("span", visible(store.me.catalog)),
					h("span", `version ${store.me.version}${store.me.read_only ? ", read only" : ""}`),
				),
			),
			h(
				"div.body",
				h(
					"header.top",
					h("button", { class: "search", onclick: () => palette() }, "Find streams, groups, keys", h("kbd", "Ctrl K")),
					h("span.grow"),
					this.conn,
					utc,
					themes,
					h("button", { class: "plain", "aria-label": "keyboard help", onclick: () => help() }, "?"),
				),
				this.banner,
				main,
			),
		);
		for (const name of ["state", "change", "connection", "away"]) store.addEventListener(name, () => this.tell());
		setInterval(() => this.tell(), 1000);
		addEventListener("shown", () => this.here());
		begin(main);
		this.tell();
	}

	here() {
		for (const each of this.links) {
			const address = each.getAttribute("href");
			if (address === "/" ? location.pathname === "/" : location.pathname.startsWith(address))
				each.setAttribute("aria-current", "page");
			else each.removeAttribute("aria-current");
		}
	}

	tell() {
		const now = store.overview;
		if (!now || !this.conn) return;
		const age = (Date.now() - store.seen) / 1000;
		const state = store.connection === "lost" ? "lost" : now.away || store.connection === "old" ? "old" : "live";
		this.conn.dataset.state = state;
		const text = state === "live" ? "live" : state === "old" ? "old" : "connection lost";
		if (this.conn.lastChild.textContent !== text) this.conn.lastChild.textContent = text;
		this.conn.title = `last heard ${span(age)} ago`;
		const said =
			state === "lost"
				? `The node does not answer; what is shown is ${span(age)} old. This page goes on by itself when it is back.`
				: now.away
					? `The catalog cannot be read (${now.away}); what is shown is old.`
					: "";
		this.banner.hidden = !said;
		if (this.banner.textContent !== said) this.banner.textContent = said;
		for (const [title, count] of [
			["Streams", now.streams_count],
			["Groups", now.groups_count],
			["Sessions", now.sessions_count],
		]) {
			const place = this.querySelector(`[data-count="${title}"]`);
			if (place && place.textContent !== String(count)) place.textContent = count;
		}
	}

	login(said = "") {
		if (this.querySelector(".login")) return;
		const token = h("input", { type: "password", autocomplete: "off", "aria-label": "token", size: 40 });
		const problem = h("p", { class: "problem", role: "alert" }, said);
		document.title = "Headrace";
		put(
			this,
			h(
				"main.login",
				h(
					"div.card",
					h(
						"form",
						{
							class: "in",
							onsubmit: async (event) => {
								event.preventDefault();
								try {
									await ask("POST", "/login", { body: { token: token.value } });
									location.reload();
								} catch (error) {
									problem.textContent = error.message;
								}
							},
						},
						brand(),
						h("h1", "Who are you?"),
						h("p", "Open the link that ", h("code", "headrace serve"), " printed, or get another one:"),
						h("code", "headrace token link"),
						h("label.field", "or give a token", token),
						problem,
						h("button.main", "Let me in"),
					),
				),
			),
		);
	}
}

const next = (now) => ({ "": "light", light: "dark", dark: "" })[now];
function theme(name) {
	localStorage.setItem("headrace.theme", name);
	if (name) document.documentElement.dataset.theme = name;
	else delete document.documentElement.dataset.theme;
}

function palette() {
	if (document.querySelector("dialog.palette")) return;
	const input = h("input", {
		placeholder: "a stream, a group, a key, or a page",
		"aria-label": "find",
		autocomplete: "off",
		role: "combobox",
		"aria-expanded": "true",
		"aria-controls": "hits",
	});
	const hits = h("ul", { id: "hits", role: "listbox", "aria-label": "what was found" });
	const dialog = h("dialog", { class: "palette", "aria-label": "Find" }, input, hits);
	let found = [];
	let at = 0;
	let asked = 0;
	const draw = () =>
		redraw(
			hits,
			found.map((each, index) =>
				h(
					"li",
					{
						"data-key": each.address,
						role: "option",
						"aria-selected": String(index === at),
						onclick: () => open(each),
					},
					h("span", visible(each.name)),
					h("span.sub", each.about),
				),
			),
		);
	const open = (each) => {
		dialog.close();
		go(each.address);
	};
	const look = async () => {
		const text = input.value.trim();
		const mine = (asked += 1);
		const pages = PAGES.filter(([, title]) => title.toLowerCase().includes(text.toLowerCase())).map(
			([address, title]) => ({ name: title, about: "page", address }),
		);
		const answer = await get("/search", { q: text }).catch(() => []);
		if (mine !== asked) return;
		found = [
			...answer.slice(0, 8).map((each) => ({
				name: each.name,
				about: `${each.kind} · ${each.about}`,
				address: link(`${each.kind}s`, each.name),
			})),
			...pages.slice(0, text ? 3 : 8),
			...(text ? [{ name: text, about: "find this key", address: `/key?key=${encodeURIComponent(text)}` }] : []),
		];
		at = Math.min(at, found.length - 1);
		draw();
	};
	input.addEventListener("input", () => {
		at = 0;
		look();
	});
	dialog.addEventListener("keydown", (event) => {
		if (event.key === "ArrowDown" || event.key === "ArrowUp") {
			event.preventDefault();
			at = (at + (event.key === "ArrowDown" ? 1 : found.length - 1)) % Math.max(1, found.length);
			draw();
		}
		if (event.key === "Enter" && found[at]) {
			event.preventDefault();
			open(found[at]);
		}
	});
	dialog.addEventListener("close", () => dialog.remove());
	document.body.append(dialog);
	dialog.showModal();
	look();
}

const KEYS = [
	["/", "filter this page"],
	["g then o s g k p", "overview, streams, groups, key, pipeline"],
	["j, k", "next, previous row"],
	["Enter", "open the row"],
	["Esc", "close, or go back up"],
	["Ctrl K", "find streams, groups, keys"],
	["?", "this help"],
];
function help() {
	const dialog = h(
		"dialog",
		{ "aria-label": "Keyboard" },
		h("header", h("h2", "Keyboard")),
		h(
			"div.in",
			h(
				"dl.pairs",
				KEYS.map(([key, text]) => [h("dt", h("kbd", key)), h("dd", text)]),
			),
		),
		h("footer", h("button", { onclick: () => dialog.close() }, "Close")),
	);
	dialog.addEventListener("close", () => dialog.remove());
	document.body.append(dialog);
	dialog.showModal();
}

let chord = 0;
document.addEventListener("keydown", (event) => {
	if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
		event.preventDefault();
		palette();
		return;
	}
	if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
	const typing = event.target.closest?.("input, textarea, select");
	if (typing) {
		if (event.key === "Escape") typing.blur();
		return;
	}
	if (chord && Date.now() - chord < 3000) {
		chord = 0;
		const page = PAGES.find(([, , key]) => key === event.key);
		if (page) {
			event.preventDefault();
			go(page[0]);
			return;
		}
	}
	if (event.key === "g") chord = Date.now();
	else if (event.key === "/") {
		const field = document.querySelector("[data-find]");
		event.preventDefault();
		if (field) field.focus();
		else palette();
	} else if (event.key === "?") help();
	else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
	else if (event.key === "Enter" && document.querySelector("tr.at") && event.target === document.body)
		go(document.querySelector("tr.at").dataset.href);
	else if (event.key === "Escape" && location.pathname !== "/")
		go(location.pathname.split("/").slice(0, -1).join("/") || "/");
});

function step(by) {
	const rows = [...document.querySelectorAll("tr[data-href]")];
	if (!rows.length) return;
	const now = rows.findIndex((each) => each.classList.contains("at"));
	rows[now]?.classList.remove("at");
	const row = rows[Math.min(rows.length - 1, Math.max(0, now + by))];
	row.classList.add("at");
	row.scrollIntoView({ block: "nearest" });
}

define("hr-app", App);
