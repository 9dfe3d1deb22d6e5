// Every view has an address of its own; filters, times and selections are in it.
import { put, h } from "./dom.js";

const routes = [];
let outlet = null;
export const route = (pattern, tag) =>
	routes.push([new RegExp("^" + pattern.replace(/:(\w+)/g, "(?<$1>[^/]+)") + "/?$"), tag]);

export const params = () => Object.fromEntries(new URLSearchParams(location.search));
export const link = (...parts) => "/" + parts.map(encodeURIComponent).join("/");

export function go(address, { replace = false } = {}) {
	if (replace) history.replaceState(null, "", address);
	else history.pushState(null, "", address);
	show();
}

// Changes a part of the address without a new view.
export function set(changes) {
	const now = params();
	for (const [key, value] of Object.entries(changes)) {
		if (value === "" || value === null || value === undefined) delete now[key];
		else now[key] = value;
	}
	const query = new URLSearchParams(now).toString();
	history.replaceState(null, "", location.pathname + (query ? "?" + query : ""));
}

export function show() {
	for (const [pattern, tag] of routes) {
		const match = pattern.exec(location.pathname);
		if (match) {
			const view = h(tag);
			view.names = Object.fromEntries(
				Object.entries(match.groups || {}).map(([key, value]) => [key, decodeURIComponent(value)]),
			);
			put(outlet, view);
			dispatchEvent(new Event("shown"));
			return;
		}
	}
	put(outlet, h("p.none", "There is no such page. ", h("a", { href: "/" }, "To the overview")));
}

export function begin(element) {
	outlet = element;
	addEventListener("popstate", show);
	document.addEventListener("click", (event) => {
		const anchor = event.target.closest?.("a[href^='/']");
		if (
			anchor &&
			!anchor.hasAttribute("download") &&
			!event.ctrlKey &&
			!event.metaKey &&
			!event.shiftKey &&
			event.button === 0
		) {
			event.preventDefault();
			go(anchor.getAttribute("href"));
		}
	});
	show();
}
