// Events: browse, filter, follow, pause, download.
import { card, copyable, h, put, scroll } from "./dom.js";
import { bytes, full, number, short, span, visible, when } from "./format.js";
import { get, path } from "./api.js";
import { option } from "./actions.js";
import { link, params, set } from "./router.js";
import { store } from "./store.js";
import { View, define } from "./view.js";

const FIELDS = [
	["start", "From", "last:50"],
	["subject", "Subject", "orders.eu.>"],
	["key", "Key", ""],
	["text", "Text", ""],
	["header", "Header", "name=value"],
	["where", "JSON", "total > 10 and user.name = ann"],
	["segments", "Segments", "0,3"],
];
const KEPT = 500;

class Events extends View {
	build() {
		this.name = this.names.stream;
		this.title(`Events of ${this.name}`);
		const now = params();
		this.inputs = Object.fromEntries(
			FIELDS.map(([name, , hint]) => [
				name,
				h("input", {
					name,
					placeholder: hint,
					value: now[name] || "",
					size: name === "where" ? 26 : 12,
					"data-find": name === "text",
				}),
			]),
		);
		this.status = h("p", { class: "sub", role: "status" });
		this.list = h("tbody");
		this.follow = h("button", { type: "button", "aria-pressed": "false", onclick: () => this.following() }, "Follow");
		this.more = h("button", { type: "button", hidden: true, onclick: () => this.fetch(this.next) }, "Look further");
		this.copies = h("div.in.stack");
		const form = h(
			"form",
			{
				class: "form in",
				onsubmit: (event) => {
					event.preventDefault();
					this.search();
				},
			},
			FIELDS.map(([name, title]) => h("label", title, this.inputs[name])),
			h("button.main", "Look"),
			this.follow,
		);
		put(
			this,
			h(
				"div.head",
				h(
					"div.crumb",
					h("a", { href: "/streams" }, "Streams"),
					" / ",
					h("a", { href: link("streams", this.name) }, visible(this.name)),
					" / ",
				),
				h("h1", "Events"),
				h("span.grow"),
				(this.jsonl = h("a", { download: true }, "JSON lines")),
				(this.parquet = h("a", { download: true }, "Parquet")),
			),
			h(
				"div.stack",
				h("section", { class: "card", "aria-label": "What to look for" }, form),
				h(
					"section.card",
					h("div.in", this.status),
					scroll(
						"Events",
						h(
							"table",
							h(
								"thead",
								h(
									"tr",
									["Time", "Place", "Subject", "Key", "Value"].map((each, at) =>
										h("th", { scope: "col", class: at === 1 ? "wide" : "" }, each),
									),
									h("th", { scope: "col", class: "n" }, "Size"),
								),
							),
							this.list,
						),
					),
					h("div.in", this.more),
				),
				card("Copy as", null, this.copies),
			),
		);
		if (now.offset && now.segment) this.one(now.segment, now.offset);
		else this.fetch();
		this.on(document, "visibilitychange", () => {
			if (document.hidden) this.stop();
		});
	}

	disconnectedCallback() {
		super.disconnectedCallback();
		this.stop();
	}

	query() {
		return Object.fromEntries(
			Object.entries(this.inputs)
				.map(([name, input]) => [name, input.value])
				.filter(([, value]) => value),
		);
	}

	search() {
		set({ ...Object.fromEntries(FIELDS.map(([name]) => [name, ""])), ...this.query(), segment: "", offset: "" });
		put(this.list);
		this.place = "";
		this.fetch();
	}

	async fetch(next) {
		const query = this.query();
		if (next) query.start = next;
		else put(this.list);
		this.status.textContent = "looking …";
		try {
			const found = await get(path("streams", this.name, "events"), { ...query, limit: 100 });
			this.next = found.next;
			const newest = !query.start || query.start.startsWith("last:");
			this.add(newest ? found.events.sort((a, b) => (a.at < b.at ? 1 : -1)) : found.events);
			this.status.textContent = `${number(this.list.children.length / 1)} shown; looked at ${number(found.looked_events)} events (${bytes(found.looked_bytes)}) in ${span(found.seconds)}${found.done ? ": that is all" : ""}`;
			this.more.hidden = found.done;
		} catch (problem) {
			this.status.textContent = problem.message;
			this.more.hidden = true;
		}
		this.links(query);
	}

	async one(segment, offset) {
		this.more.hidden = true;
		try {
			this.add([await get(path("streams", this.name, "event"), { segment, offset })], true);
			this.status.textContent = `the event at ${segment}:${offset}`;
		} catch (problem) {
			this.status.textContent = problem.message;
		}
		this.links({});
	}

	links(query) {
		const text = new URLSearchParams({ start: "earliest", ...query });
		this.jsonl.href = `/api/v1${path("streams", this.name, "download")}?${text}&form=jsonl`;
		this.parquet.href = `/api/v1${path("streams", this.name, "download")}?${text}&form=parquet`;
		const { name } = this;
		const sql = (value) => `'${String(value).replaceAll("'", "''")}'`;
		const start = /^(last:.*)?$/.test(query.start || "") ? "" : query.start;
		const python = [name, start, query.subject].map((each) => JSON.stringify(each || ""));
		const where = store.me.catalog.replace("catalog ", "");
		put(
			this.copies,
			copyable(`headrace read ${name}${option("from", start)}${option("subject", query.subject)}`),
			copyable(
				`async for batch in hr.read(${python[0]}${start ? `, start=${python[1]}` : ""}${query.subject ? `, subject=${python[2]}` : ""}): …`,
			),
			copyable(
				`CREATE TEMPORARY VIEW events USING headrace OPTIONS (catalog ${sql(where)}, subscribe ${sql(name)}${query.subject ? `, subject ${sql(query.subject)}` : ""}); ` +
					`SELECT * FROM events${query.key ? ` WHERE key = ${sql(query.key)}` : ""}`,
			),
		);
	}

	add(events, open = false, first = false) {
		const rows = events.map((each) => this.row(each, open));
		if (first) {
			this.list.prepend(...rows.reverse());
			while (this.list.children.length > KEPT) this.list.lastChild.remove();
		} else this.list.append(...rows);
	}

	row(each, open) {
		const place = `${each.segment}:${each.offset}`;
		const address = `${link("streams", this.name, "events")}?segment=${each.segment}&offset=${each.offset}`;
		const first = visible(each.value).split("\n", 1)[0].slice(0, 300);
		return h(
			"tr",
			h("td", h("time", { datetime: each.at, title: full(each.at) }, when(each.at))),
			h("td.wide", h("a", { href: address }, place)),
			h("td", visible(each.subject)),
			h(
				"td",
				each.key === null
					? h("span.sub", "none")
					: h("a", { href: `/key?key=${encodeURIComponent(each.key)}` }, visible(each.key)),
			),
			h(
				"td",
				h(
					"details",
					{ open },
					h("summary.cut1.mono", first || "(empty)"),
					this.value(each),
					each.headers.length
						? h(
								"dl.pairs",
								each.headers.map(([name, value]) => [h("dt", visible(name)), h("dd.mono", visible(value))]),
							)
						: null,
					each.cut ? h("p.sub", `the first part of ${bytes(each.size_bytes)}`) : null,
				),
			),
			h("td.n", bytes(each.size_bytes)),
		);
	}

	value(each) {
		let text = each.value;
		if (each.form === "json") {
			try {
				text = JSON.stringify(JSON.parse(each.value), null, 2);
			} catch {
				/* as it is */
			}
		}
		return h("div", { class: "value", "aria-label": each.form }, visible(text));
	}

	following() {
		if (this.source) {
			this.stop();
			return;
		}
		// After a pause it goes on where it was.
		const query = { ...this.query(), start: this.place || "latest" };
		this.left = 0;
		this.source = new EventSource(`/api/v1${path("streams", this.name, "tail")}?${new URLSearchParams(query)}`);
		this.follow.setAttribute("aria-pressed", "true");
		this.follow.textContent = "Pause";
		this.status.textContent = "following: events come as they are published";
		this.source.addEventListener("event", (event) => {
			const data = JSON.parse(event.data);
			this.left += data.left_out;
			this.place = data.next;
			this.add(data.events, false, true);
			this.status.textContent = `following${this.left ? `; ${short(this.left)} were left out, since more than 200 a second came` : ""}`;
		});
		this.source.addEventListener("problem", (event) => {
			this.status.textContent = JSON.parse(event.data).detail;
			this.stop();
		});
	}

	stop() {
		this.source?.close();
		this.source = null;
		this.follow.setAttribute("aria-pressed", "false");
		this.follow.textContent = "Follow";
	}
}

define("hr-events", Events);
