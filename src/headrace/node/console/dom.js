// Making and changing elements: text is always text, never markup.
const SVG = "http://www.w3.org/2000/svg";

// What is called stands on the element, so that a redraw can change it.
const heard = (event) => event.currentTarget.calls[event.type]?.(event);
function hear(element, calls = {}) {
	element.calls = calls;
	for (const type in calls) element.addEventListener(type, heard);
}

// `tag` may name classes ("p.sub"); the attributes may be left out.
function fill(make, tag, args) {
	const [name, ...classes] = tag.split(".");
	const [props, ...children] = args[0]?.constructor === Object ? args : [null, ...args];
	const element = make(name);
	if (classes.length) element.setAttribute("class", classes.join(" "));
	for (const [name, value] of Object.entries(props || {})) {
		if ((value ?? false) === false) continue;
		if (name.startsWith("on")) hear(element, { ...element.calls, [name.slice(2)]: value });
		else if (name === "vars") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
		else element.setAttribute(name, value === true ? "" : String(value));
	}
	return put(element, children);
}

export const h = (tag, ...args) => fill((name) => document.createElement(name), tag, args);
export const s = (tag, ...args) => fill((name) => document.createElementNS(SVG, name), tag, args);
export const put = (element, ...children) => {
	element.replaceChildren(...children.flat(9).filter((each) => (each ?? false) !== false));
	return element;
};

// Like `put`, but what is there is kept and changed: it may have the focus, or be pressed, selected or open.
// The children are made anew for it: what a view keeps for itself must not be among them.
export function redraw(element, ...children) {
	const kept = new Map(named(element.childNodes));
	const fresh = named(put(new DocumentFragment(), ...children).childNodes);
	return arrange(
		element,
		fresh.map(([name, each]) => (kept.has(name) ? patch(kept.get(name), each) : each)),
	);
}

// Which of its siblings a node is: by its key, else the n-th of its kind. A button that says something else,
// or a link to elsewhere, is another one: who pressed the old one did not mean it.
function named(nodes) {
	const seen = {};
	return [...nodes].map((each) => {
		const key = each.dataset?.key ?? each.href ?? (each.nodeName === "BUTTON" ? each.textContent : "");
		const name = `${each.nodeName} ${key}`;
		seen[name] = (seen[name] || 0) + 1;
		return [`${seen[name]} ${name}`, each];
	});
}

function patch(old, fresh) {
	if (old.nodeName === "#text") {
		if (old.data !== fresh.data) old.data = fresh.data;
		return old;
	}
	if ("whole" in fresh.dataset) return old; // its key says all of it
	for (const name of new Set([...old.getAttributeNames(), ...fresh.getAttributeNames()])) {
		const value = fresh.getAttribute(name);
		if (name === "open" || value === old.getAttribute(name)) continue; // whoever looks opens and closes
		if (value === null) old.removeAttribute(name);
		else if (name === "style") old.style.cssText = value; // the policy forbids the attribute
		else old.setAttribute(name, value);
	}
	hear(old, fresh.calls);
	return redraw(old, ...fresh.childNodes);
}

// Exactly these children, in this order. A node that is moved loses focus and press: others move around it.
export function arrange(element, nodes) {
	const wanted = new Set(nodes);
	for (const each of [...element.childNodes]) if (!wanted.has(each)) each.remove();
	const still = nodes.find((each) => each.parentNode === element && each.matches?.(":active, :focus-within"));
	let at = element.firstChild;
	for (const each of nodes) {
		while (each === still && at !== each) {
			const next = at.nextSibling;
			element.append(at);
			at = next;
		}
		if (at === each) at = at.nextSibling;
		else element.insertBefore(each, at);
	}
	return element;
}

export const card = (title, extra, ...children) =>
	h("section.card", h("header", h("h2", title), h("span.grow"), extra), ...children);

export const tile = (key, value, small) =>
	h("div.tile", h("div.k", key), h("div.v", value), small ? h("div.s", small) : null);

export const pair = (key, value) => (value ? [h("dt", key), h("dd", value)] : null);

export const scroll = (label, ...children) =>
	h("div.scroll", { tabindex: "0", role: "region", "aria-label": label }, ...children);

export const badge = (text, kind) => h("span", { class: `badge ${kind || ""}` }, text);

export const small = (text, onclick) => h("button", { class: "small", onclick }, text);

export function copyable(text) {
	const button = h("button", { class: "small plain", type: "button", "aria-label": `copy: ${text}` }, "copy");
	button.addEventListener("click", async (event) => {
		event.stopPropagation();
		try {
			await navigator.clipboard.writeText(text);
			button.textContent = "copied";
		} catch {
			button.textContent = "press Ctrl-C";
		}
		setTimeout(() => {
			button.textContent = "copy";
		}, 1500);
	});
	return h("span.cmd", { "data-key": text, "data-whole": true }, h("code", text), button);
}

// Buttons for how much time is shown; `press` says which it is.
export const spans = (names, call) =>
	h(
		"span",
		{ class: "seg", role: "group", "aria-label": "how much time" },
		Object.keys(names).map((each) => h("button", { type: "button", onclick: () => call(each) }, each)),
	);
export const press = (element, name) => {
	for (const each of element.children) each.setAttribute("aria-pressed", String(each.textContent === name));
};

// What is told to screen readers: at most one sentence every two seconds, and only the newest.
let region = null;
let due = "";
let timer = 0;
export function announce(text) {
	due = text;
	if (timer) return;
	timer = setTimeout(() => {
		timer = 0;
		region ??= document.body.appendChild(h("div", { class: "hidden", role: "status", "aria-live": "polite" }));
		region.textContent = due;
	}, 2000);
}
