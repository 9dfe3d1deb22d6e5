// What every view shares: loading, problems, and being told of changes while it is shown.
import { get } from "./api.js";
import { h, put } from "./dom.js";
import { store } from "./store.js";

export class View extends HTMLElement {
	names = {};
	#stops = [];
	#timer = 0;
	#last = 0;
	#loaded = false;
	#failed = null;
	alive = true;

	connectedCallback() {
		this.alive = true;
		this.build();
	}

	disconnectedCallback() {
		this.alive = false;
		clearTimeout(this.#timer);
		this.#timer = 0;
		for (const stop of this.#stops) stop();
		this.#stops = [];
	}

	on(target, name, call) {
		target.addEventListener(name, call);
		this.#stops.push(() => target.removeEventListener(name, call));
	}

	// Ask again soon: at most once in a while, however often something changes.
	again(call, every = 1000) {
		if (this.#timer) return;
		this.#timer = setTimeout(
			async () => {
				this.#timer = 0;
				if (!this.alive || document.hidden) return;
				this.#last = Date.now();
				try {
					await call();
				} catch {
					/* said by the connection's state */
				}
			},
			Math.max(0, every - (Date.now() - this.#last)),
		);
	}

	title(text) {
		document.title = `${text} · Headrace`;
	}

	async load(where, query) {
		try {
			const found = await get(where, query);
			this.#loaded = true;
			return found;
		} catch (problem) {
			// What is shown stays while the node is away; that it is old is said above it.
			const gone = problem.status === 403 || problem.status === 404;
			if (this.alive && problem.status !== 401 && (gone || !this.#loaded)) {
				this.#failed = () => get(where, query);
				put(this, h("div.card", h("p", { class: "none problem", role: "alert" }, problem.message)));
			}
			throw problem;
		}
	}

	onChange(call) {
		const told = (change) => (this.#failed ? this.again(() => this.#mend(), 2000) : call(change));
		this.on(store, "change", (event) => told(event.detail));
		this.on(store, "state", () => told(null));
	}

	follow() {
		this.onChange(() => this.again(() => this.fetch(), 2000));
	}

	// What could not be shown is tried again, and built once it is there.
	async #mend() {
		await this.#failed();
		this.disconnectedCallback();
		this.#failed = null;
		this.connectedCallback();
	}
}

export const define = (tag, type) => customElements.define(tag, type);
