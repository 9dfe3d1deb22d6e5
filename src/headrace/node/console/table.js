// Tables whose rows are kept: a change touches only the cells that differ.
import { arrange, h, redraw, scroll } from "./dom.js";
import { go } from "./router.js";

const classes = (column) =>
	[column.number && "n", column.name && "name", column.wide && "wide", column.extra && "extra"]
		.filter(Boolean)
		.join(" ");

export class Table {
	#rows = new Map();
	constructor(columns, { key, href, label, none = "nothing here yet", sort, onsort } = {}) {
		Object.assign(this, { columns, key, href, sort, onsort });
		this.body = h("tbody");
		this.heads = columns.map((column) =>
			h(
				"th",
				{ class: classes(column), scope: "col" },
				column.sort && onsort
					? h("button", { type: "button", onclick: () => this.#sorted(column.sort) }, column.title)
					: column.title || h("span.hidden", "more"),
			),
		);
		this.none = h("p.none", none);
		this.element = scroll(
			label || "table",
			h("table", h("caption.hidden", label || ""), h("thead", h("tr", this.heads)), this.body),
			this.none,
		);
		this.#marks();
	}

	#sorted(field) {
		this.sort = this.sort === `-${field}` ? field : `-${field}`;
		this.#marks();
		this.onsort(this.sort);
	}

	#marks() {
		this.columns.forEach((column, at) => {
			if (this.sort?.replace("-", "") === column.sort && column.sort)
				this.heads[at].setAttribute("aria-sort", this.sort.startsWith("-") ? "descending" : "ascending");
			else this.heads[at].removeAttribute("aria-sort");
		});
	}

	update(rows) {
		const seen = new Map();
		for (const row of rows) {
			const id = this.key(row);
			const kept = seen.get(id) || this.#rows.get(id) || this.#made(row);
			this.#fill(kept, row);
			seen.set(id, kept);
		}
		this.#rows = seen;
		arrange(
			this.body,
			[...seen.values()].map((each) => each.tr),
		);
		this.none.hidden = rows.length > 0;
		return this;
	}

	#made(row) {
		const cells = this.columns.map((column) => h("td", { class: classes(column) }));
		const tr = h("tr", cells);
		if (this.href) {
			tr.dataset.href = this.href(row);
			tr.addEventListener("click", (event) => {
				if (!event.target.closest("a, button, input, details")) go(tr.dataset.href);
			});
		}
		return { tr, cells, shown: this.columns.map(() => undefined) };
	}

	#fill(kept, row) {
		this.columns.forEach((column, at) => {
			const value = column.text
				? column.text(row)
				: column.mark
					? column.mark(row)
					: JSON.stringify(column.value ? column.value(row) : row);
			if (kept.shown[at] === value) return;
			kept.shown[at] = value;
			if (column.show) redraw(kept.cells[at], column.show(row));
			else kept.cells[at].textContent = value;
		});
	}
}
