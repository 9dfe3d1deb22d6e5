// Epochs: frontiers, who holds them back, and who has read how far.
import { badge, card, h, put, tile } from "./dom.js";
import { ago, number, short, span, visible } from "./format.js";
import { get, path } from "./api.js";
import { Table } from "./table.js";
import { View, define } from "./view.js";

const time = (one) => (Array.isArray(one) ? `(${one.join(", ")})` : String(one));
const frontier = (one) => {
	const times = Array.isArray(one) ? one : one?.elements || one?.times || [];
	return times.length ? times.map(time).join(" · ") : "everything";
};

class Epochs extends View {
	build() {
		this.title("Epochs");
		this.list = h("div", { class: "stack" });
		put(
			this,
			h(
				"div",
				{ class: "head" },
				h("h1", {}, "Epochs"),
				h("span", { class: "what" }, "what lies before a frontier is complete"),
			),
			this.list,
		);
		this.fetch().catch(() => {});
		this.onChange((change) => {
			if (!change || change.streams.length) this.again(() => this.fetch(), 2000);
		});
	}

	async fetch() {
		const names = await this.load("/epochs");
		const found = await Promise.all(names.map((name) => get(path("epochs", name))));
		put(
			this.list,
			found.length
				? found.map((each) => this.one(each))
				: h("p", { class: "none" }, "No stream is published by epochs."),
		);
	}

	one({ status, sentences }) {
		const publishers = new Table(
			[
				{ title: "Publisher", name: true, text: (row) => visible(row.name) },
				{
					title: "State",
					mark: (row) => row.state,
					show: (row) => badge(row.state, row.state === "active" ? "good" : row.state === "lost" ? "bad" : ""),
				},
				{ title: "Holds", text: (row) => frontier(row.held) },
				{
					title: "Holds back",
					mark: (row) => `${row.holds_back}`,
					show: (row) =>
						row.holds_back
							? row.state === "active"
								? badge("◆ the next to advance")
								: badge("▲ holds the frontier", "warn")
							: null,
				},
				{ title: "Last commit", text: (row) => (row.last_commit_us ? ago(row.last_commit_us / 1000) : "never") },
			],
			{ key: (row) => row.name, label: "Publishers", none: "Nobody publishes." },
		);
		const subscriptions = new Table(
			[
				{ title: "Subscription", name: true, text: (row) => visible(row.name) },
				{ title: "Frontier", text: (row) => frontier(row.frontier) },
				{ title: "Behind", number: true, text: (row) => `${number(row.epochs)} epochs, ${short(row.rows)} rows` },
				{ title: "Since", number: true, text: (row) => span(row.behind_us / 1e6) },
			],
			{ key: (row) => row.name, label: "Subscriptions", none: "Nobody has subscribed by name." },
		);
		return card(
			status.stream,
			badge(status.status, status.status === "open" ? "good" : ""),
			h(
				"div",
				{ class: "in stack" },
				h(
					"div",
					{ class: "tiles" },
					tile(
						"Frontier",
						frontier(status.frontier),
						status.moved_us ? `for ${span((status.now_us - status.moved_us) / 1e6)}` : "",
					),
					tile("Open epochs", number(status.open_epochs), `${short(status.open_rows)} rows`),
					tile("Readable since", frontier(status.since), ""),
				),
				staircase(status),
				sentences.map((each) => h("p", {}, visible(each))),
			),
			publishers.update(status.publishers).element,
			subscriptions.update(status.subscriptions).element,
		);
	}
}

function staircase(status) {
	const open = (status.open || []).slice(0, 12);
	if (!open.length) return h("p", { class: "sub" }, "No epoch is open.");
	const most = Math.max(...open.map(([, rows]) => rows));
	return h(
		"div",
		{ class: "owners", "aria-label": "open epochs" },
		open.map(([at, rows]) =>
			h(
				"span",
				{ class: "owner", vars: { "border-left-width": `${4 + Math.round((rows / most) * 28)}px` } },
				`${time(at)}: ${number(rows)} rows`,
			),
		),
	);
}

define("hr-epochs", Epochs);
