// Regions: what is copied from where, groups and their homes, and what a loss would cost.
import { badge, card, copyable, h, put, redraw, tile } from "./dom.js";
import { many, short, span, visible } from "./format.js";
import { link } from "./router.js";
import { Table } from "./table.js";
import { View, define } from "./view.js";

const KIND = { active: "good", away: "bad", lost: "bad", "one-sided": "warn", paused: "warn" };
const SHAPE = { good: "●", bad: "✕", warn: "▲", "": "○" };
const events = (count) => (count === null ? "?" : short(count));

const linkColumns = () => [
	{
		title: "Stream",
		name: true,
		mark: (row) => row.stream,
		show: (row) => h("a", { href: link("streams", row.stream) }, visible(row.stream)),
	},
	{ title: "Copied from", text: (row) => visible(row.region) },
	{
		title: "State",
		mark: (row) => row.state,
		show: (row) => badge(`${SHAPE[KIND[row.state] ?? ""]} ${row.state}`, KIND[row.state] ?? ""),
	},
	{ title: "Written in", text: (row) => visible(row.writers) },
	{ title: "Not here yet", number: true, text: (row) => events(row.lag_events) },
	{
		title: "Last copied",
		number: true,
		text: (row) => (row.moved_s === null ? "never" : `${span(row.moved_s)} ago`),
	},
	{ title: "Missed", number: true, text: (row) => short(row.missed) },
	{ title: "Error", wide: true, text: (row) => visible(row.error) },
];

const behind = (row) =>
	Object.entries(row.behind)
		.filter(([, count]) => count !== 0)
		.map(([region, count]) => (count === null ? `${region} cannot be read` : `${region} misses ${many(count, "place")}`))
		.join(", ") || "in step";

const groupColumns = () => [
	{
		title: "Group",
		name: true,
		mark: (row) => row.group,
		show: (row) => h("a", { href: link("groups", row.group) }, visible(row.group)),
	},
	{
		title: "Home",
		text: (row) => visible(row.moving_to ? `moving to ${row.moving_to}` : row.home || "everywhere"),
	},
	{
		title: "Here",
		mark: (row) => row.waits,
		show: (row) => (row.waits ? badge("○ waits") : badge("● consumes", "good")),
	},
	{ title: "Why", wide: true, text: (row) => visible(row.waits) },
	{ title: "Other regions", text: (row) => visible(behind(row)) },
];

function cost(one) {
	const said = [];
	if (!one.here)
		said.push(
			one.waiting_events === null
				? "it cannot be read, so nobody here knows what it has more"
				: `${short(one.waiting_events)} of its events are not here yet`,
		);
	if (one.here)
		said.push(
			one.unsynced_cursors === null
				? "no other region answers, so none may know what was acked here"
				: `known here only: ${many(one.unsynced_cursors, "place")} of groups, which would be gone back to`,
		);
	if (one.groups.length) said.push(`groups at home there: ${one.groups.map(visible).join(", ")}`);
	return said.join("; ");
}

const lossColumns = () => [
	{
		title: "If this were lost now",
		name: true,
		text: (row) => visible(row.region) + (row.here ? " (here)" : ""),
	},
	{ title: "", text: (row) => cost(row) },
	{ title: "Then", wide: true, text: (row) => row.todo },
];

class Regions extends View {
	build() {
		this.title("Regions");
		this.tiles = h("div.tiles");
		this.links = new Table(linkColumns(), {
			key: (row) => row.stream + row.region,
			label: "Links",
			none: "No stream is linked to another region.",
		});
		this.groups = new Table(groupColumns(), {
			key: (row) => row.group,
			label: "Groups that move with their consumers",
			none: "No group is replicated.",
		});
		this.losses = new Table(lossColumns(), {
			key: (row) => row.region,
			label: "If a region were lost now",
			none: "There is no other region.",
		});
		this.body = h("div.stack");
		put(this, h("div.head", h("h1", "Regions")), this.body);
		this.fetch().catch(() => {});
		this.onChange(() => this.again(() => this.fetch(), 4000));
	}

	async fetch() {
		const { status, losses } = await this.load("/regions");
		if (status.region === null) {
			redraw(
				this.body,
				h("p.none", "This catalog is no region yet. A stream can live in several:"),
				copyable("headrace region name NAME"),
			);
			return;
		}
		redraw(
			this.tiles,
			tile("This region", visible(status.region), `incarnation ${status.incarnation}`),
			tile("Agent", status.agent ? "runs" : "none", status.agent ? "and carries progress over" : "headrace region run"),
			tile("Links", `${status.links.length}`, `${status.links.filter((each) => each.error).length} with errors`),
			tile("Groups", `${status.groups.length}`, `${status.groups.filter((each) => each.waits).length} wait here`),
		);
		this.links.update(status.links);
		this.groups.update(status.groups);
		this.losses.update(losses);
		if (this.tiles.parentElement !== this.body)
			put(
				this.body,
				this.tiles,
				card("If a region were lost now", null, this.losses.element),
				card("Links", null, this.links.element),
				card("Groups", null, this.groups.element),
				copyable("headrace region status --watch"),
			);
	}
}

define("hr-regions", Regions);
