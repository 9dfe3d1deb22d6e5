// Epochs: frontiers, who holds them back, and who has read how far.
import { badge, card, h, put, tile } from "./dom.js";
import { ago, number, short, span, visible } from "./format.js";
import { get, path } from "./api.js";
import { Table } from "./table.js";
import { endPublisher } from "./actions.js";
import { forgetSubscription } from "./actions-groups.js";
import { may } from "./store.js";
import { drawStairs, frontier, time } from "./stairs.js";
import { View, define } from "./view.js";

class Epochs extends View {
	build() {
		this.title("Epochs");
		this.list = h("div.stack");
		this.places = new Map();
		put(this, h("div.head", h("h1", "Epochs"), h("span.what", "what lies before a frontier is complete")), this.list);
		this.fetch().catch(() => {});
		this.on(window, "resize", () => this.draw());
		// Frontiers advance without rows, too: every change may be one.
		this.onChange(() => this.again(() => this.fetch(), 2000));
	}

	async fetch() {
		const names = await this.load("/epochs");
		const found = await Promise.all(
			names.map((name) => Promise.all([get(path("epochs", name)), get(path("epochs", name, "steps"))])),
		);
		put(
			this.list,
			found.length ? found.map(([each]) => this.one(each)) : h("p.none", "No stream is published by epochs."),
		);
		this.drawn = found;
		this.draw();
	}

	// After they are in the page: a drawing is as wide as its place.
	draw() {
		this.drawn?.forEach(([{ status }, steps]) => drawStairs(this.places.get(status.stream), steps, status));
	}

	async forget(name) {
		await forgetSubscription(name);
		this.again(() => this.fetch(), 0);
	}

	one({ status, sentences }) {
		if (!this.places.has(status.stream)) this.places.set(status.stream, h("div"));
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
				{
					title: "",
					mark: (row) => row.name,
					show: (row) =>
						may("admin") && status.status === "open"
							? h("button", { class: "small", onclick: () => endPublisher(status.stream, row.name) }, "Do without")
							: null,
				},
			],
			{ key: (row) => row.name, label: `Publishers of ${status.stream}`, none: "Nobody publishes." },
		);
		const subscriptions = new Table(
			[
				{ title: "Subscription", name: true, text: (row) => visible(row.name) },
				{ title: "Frontier", text: (row) => frontier(row.frontier) },
				{ title: "Behind", number: true, text: (row) => `${number(row.epochs)} epochs, ${short(row.rows)} rows` },
				{ title: "Since", number: true, text: (row) => span(row.behind_us / 1e6) },
				{
					title: "",
					mark: (row) => row.name,
					show: (row) =>
						may("admin")
							? h("button", { class: "small", onclick: () => this.forget(row.name) }, "Forget")
							: null,
				},
			],
			{ key: (row) => row.name, label: `Subscriptions to ${status.stream}`, none: "Nobody has subscribed by name." },
		);
		return card(
			status.stream,
			badge(status.status, status.status === "open" ? "good" : ""),
			h(
				"div.in.stack",
				h(
					"div.tiles",
					tile(
						"Frontier",
						frontier(status.frontier),
						status.moved_us ? `for ${span((status.now_us - status.moved_us) / 1e6)}` : "",
					),
					tile("Open epochs", number(status.open_epochs), `${short(status.open_rows)} rows`),
					tile("Readable since", frontier(status.since), ""),
				),
				this.places.get(status.stream),
				openEpochs(status),
				sentences.map((each) => h("p", visible(each))),
			),
			publishers.update(status.publishers).element,
			subscriptions.update(status.subscriptions).element,
		);
	}
}

function openEpochs(status) {
	const open = (status.open || []).slice(0, 12);
	if (!open.length) return h("p.sub", "No epoch is open.");
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
