// A key, the pipeline, sessions, epochs, and who gets in.
import { badge, card, copyable, h, put, tile } from "./dom.js";
import { ago, bytes, full, number, rate, short, span, visible, when } from "./format.js";
import { ask, get, path } from "./api.js";
import { drawMap } from "./map.js";
import { link, params, set } from "./router.js";
import { may, store } from "./store.js";
import { Table } from "./table.js";
import { View, define } from "./view.js";
import { createToken, removeSession, removeToken } from "./actions.js";

class Key extends View {
  build() {
    this.title("Find a key");
    const now = params();
    this.input = h("input", { name: "key", value: now.key || "", size: 30, placeholder: "42", required: true, "data-find": true });
    this.answer = h("div", { class: "stack" });
    put(this, h("div", { class: "head" }, h("h1", {}, "Find a key")), h("form", { class: "form", onsubmit: (event) => { event.preventDefault(); set({ key: this.input.value }); this.fetch(); } }, h("label", {}, "Key, or subject of events that have none", this.input), h("button", { class: "main" }, "Find")), this.answer);
    if (now.key) this.fetch();
  }

  async fetch() {
    const key = this.input.value;
    put(this.answer, h("p", { class: "none" }, "looking …"));
    let found;
    try { found = await get("/keys", { key }); } catch (problem) { put(this.answer, h("p", { class: "none problem" }, problem.message)); return; }
    const { at, found: all } = found;
    const units = new Table([{ title: "Group", name: true, mark: (row) => row.group, show: (row) => h("a", { href: link("groups", row.group) }, visible(row.group)) }, { title: "Unit", text: (row) => row.unit }, { title: "Owner", mark: (row) => `${row.instance}`, show: (row) => (row.instance ? visible(`${row.member} (${row.instance})`) : badge("✕ nobody", "bad")) }, { title: "Not acked", number: true, text: (row) => `${row.unacked.length}` }, { title: "Refused", number: true, text: (row) => `${row.refused.length}` }, { title: "Dead", number: true, text: (row) => `${row.dead.length}` }], { key: (row) => row.group + row.unit, label: "Who consumes it", none: "No group consumes it." });
    const events = new Table([{ title: "Time", text: (row) => when(row.published_at) }, { title: "Place", mark: (row) => `${row.stream}${row.segment}${row.offset}`, show: (row) => h("a", { href: `${link("streams", row.stream, "events")}?segment=${row.segment}&offset=${row.offset}` }, `${row.stream} ${row.segment}:${row.offset}`) }, { title: "Subject", text: (row) => visible(row.subject) }, { title: "Size", number: true, text: (row) => bytes(row.size_bytes) }], { key: (row) => `${row.stream}${row.segment}:${row.offset}`, label: "Its last events", none: "None of the latest events has this key." });
    put(this.answer, h("div", { class: "tiles" }, tile("Place in the key space", at.toFixed(4), "of 0 to 1"), tile("Segments", `${all.segments.length}`, "it lives or lived in"), tile("Last events", `${all.events.length}`, `of the latest ${short(all.scanned_events)} of each segment`)), card("Who consumes it", null, units.update(all.units).element), card("Its last events", null, events.update([...all.events].reverse()).element), copyable(`headrace find '${key}'`));
    const homes = all.segments.some((each) => each.found_events) ? all.segments.filter((each) => each.found_events) : all.segments;
    for (const name of [...new Set(homes.map((each) => each.stream))].slice(0, 4)) this.map(name, at, all.segments.filter((each) => each.stream === name));
  }

  async map(name, at, homes) {
    const place = h("div");
    this.answer.append(card(`Its way through ${name}`, h("a", { href: link("streams", name) }, "stream"), h("div", { class: "in" }, place, h("p", { class: "sub" }, `segments ${homes.map((each) => each.segment + (each.lives ? " (now)" : "")).join(" → ")}`))));
    const data = await get(path("streams", name));
    const to = new Date(data.seen_at).getTime();
    drawMap(place, { segments: data.segments, from: Math.min(to - 60e3, ...data.segments.map((each) => new Date(each.opened_at).getTime())), to, key: data.config.partitions ? null : at });
  }
}

class Pipeline extends View {
  build() {
    this.title("Pipeline");
    this.tiles = h("div", { class: "tiles" });
    this.jobs = new Table([{ title: "Job", name: true, text: (row) => visible(row.job) }, { title: "State", mark: (row) => row.state + row.failures, show: (row) => badge(row.failures ? `✕ ${row.state}, ${row.failures} failures` : row.state === "running" ? "● running" : row.state, row.failures ? "bad" : row.state === "running" ? "good" : "") }, { title: "Rate", number: true, text: (row) => rate(row.rate_per_s) }, { title: "Lag", number: true, text: (row) => (row.lag_events === null ? "?" : short(row.lag_events)) }, { title: "Events", number: true, text: (row) => short(row.events) }, { title: "Since", text: (row) => when(row.since_at) }, { title: "Last error", text: (row) => visible(row.last_error || row.note) }], { key: (row) => row.job, label: "Jobs", none: "No job runs." });
    put(this, h("div", { class: "head" }, h("h1", {}, "Pipeline")), h("div", { class: "stack" }, this.tiles, card("Jobs", null, this.jobs.element), copyable("headrace pipeline")));
    this.fetch().catch(() => {});
    this.onChange(() => this.again(() => this.fetch(), 2000));
  }

  async fetch() {
    const found = await this.load("/pipeline");
    put(this.tiles, tile("Led by", found.led ? `${found.host || "somebody"}` : "nobody", found.led ? `process ${found.pid}, since ${when(found.leads_since_at)}` : found.wanted ? "and groups need one: headrace pipeline" : "and nothing needs one"), tile("Spark", found.master || "–", ""), tile("Jobs", `${found.jobs.length}`, `${found.jobs.filter((each) => each.failures).length} failing`));
    this.jobs.update(found.jobs);
  }
}

class Sessions extends View {
  build() {
    this.title("Sessions");
    this.table = new Table([{ title: "Session", name: true, text: (row) => visible(row.session) }, { title: "State", mark: (row) => `${row.instance}`, show: (row) => (row.instance ? badge("● runs", "good") : badge("○ nobody runs it")) }, { title: "Run by", wide: true, text: (row) => visible(row.instance || "–") }, { title: "Subscriptions", text: (row) => row.subscriptions.map(visible).join(", ") }, { title: "Kept until", text: (row) => (row.expires_at ? when(row.expires_at) : "–") }, { title: "", mark: (row) => row.session, show: (row) => (may("admin") ? h("button", { class: "small", onclick: () => removeSession(row.session) }, "Remove") : null) }], { key: (row) => row.session, label: "Sessions", none: "There are no sessions." });
    put(this, h("div", { class: "head" }, h("h1", {}, "Sessions")), h("section", { class: "card" }, this.table.element));
    this.fetch().catch(() => {});
    this.onChange(() => this.again(() => this.fetch(), 2000));
  }

  async fetch() { this.table.update(await this.load("/sessions")); }
}

const time = (one) => (Array.isArray(one) ? `(${one.join(", ")})` : String(one));
const frontier = (one) => { const times = Array.isArray(one) ? one : one?.elements || one?.times || []; return times.length ? times.map(time).join(" · ") : "everything"; };

class Epochs extends View {
  build() {
    this.title("Epochs");
    this.list = h("div", { class: "stack" });
    put(this, h("div", { class: "head" }, h("h1", {}, "Epochs"), h("span", { class: "what" }, "what lies before a frontier is complete")), this.list);
    this.fetch().catch(() => {});
    this.onChange((change) => { if (!change || change.streams.length) this.again(() => this.fetch(), 2000); });
  }

  async fetch() {
    const names = await this.load("/epochs");
    const found = await Promise.all(names.map((name) => get(path("epochs", name))));
    put(this.list, found.length ? found.map((each) => this.one(each)) : h("p", { class: "none" }, "No stream is published by epochs."));
  }

  one({ status, sentences }) {
    const publishers = new Table([{ title: "Publisher", name: true, text: (row) => visible(row.name) }, { title: "State", mark: (row) => row.state, show: (row) => badge(row.state, row.state === "active" ? "good" : row.state === "lost" ? "bad" : "") }, { title: "Holds", text: (row) => frontier(row.held) }, { title: "Holds back", mark: (row) => `${row.holds_back}`, show: (row) => (row.holds_back ? badge("▲ holds the frontier", "warn") : null) }, { title: "Last commit", text: (row) => (row.last_commit_us ? ago(row.last_commit_us / 1000) : "never") }], { key: (row) => row.name, label: "Publishers", none: "Nobody publishes." });
    const subscriptions = new Table([{ title: "Subscription", name: true, text: (row) => visible(row.name) }, { title: "Frontier", text: (row) => frontier(row.frontier) }, { title: "Behind", number: true, text: (row) => `${number(row.epochs)} epochs, ${short(row.rows)} rows` }, { title: "Since", number: true, text: (row) => span(row.behind_us / 1e6) }], { key: (row) => row.name, label: "Subscriptions", none: "Nobody has subscribed by name." });
    return card(status.stream, badge(status.status, status.status === "open" ? "good" : ""), h("div", { class: "in stack" }, h("div", { class: "tiles" }, tile("Frontier", frontier(status.frontier), status.moved_us ? `for ${span((status.now_us - status.moved_us) / 1e6)}` : ""), tile("Open epochs", number(status.open_epochs), `${short(status.open_rows)} rows`), tile("Readable since", frontier(status.since), "")), staircase(status), sentences.map((each) => h("p", {}, visible(each)))), publishers.update(status.publishers).element, subscriptions.update(status.subscriptions).element);
  }
}

function staircase(status) {
  const open = (status.open || []).slice(0, 12);
  if (!open.length) return h("p", { class: "sub" }, "No epoch is open.");
  const most = Math.max(...open.map(([, rows]) => rows));
  return h("div", { class: "owners", "aria-label": "open epochs" }, open.map(([at, rows]) => h("span", { class: "owner", vars: { "border-left-width": `${4 + Math.round((rows / most) * 28)}px` } }, `${time(at)}: ${number(rows)} rows`)));
}

class Access extends View {
  build() {
    this.title("Access");
    this.tokens = new Table([{ title: "Token", name: true, text: (row) => visible(row.token) }, { title: "Roles", text: (row) => row.roles.join(", ") }, { title: "Subjects", text: (row) => row.subjects.join(", ") || "all" }, { title: "Made", text: (row) => full(row.created_at) }, { title: "Expires", text: (row) => (row.expired ? "expired" : row.expires_at ? full(row.expires_at) : "never") }, { title: "", mark: (row) => row.token, show: (row) => (may("admin") ? h("button", { class: "small", onclick: () => removeToken(row.token).then(() => this.fetch()) }, "Remove") : null) }], { key: (row) => row.token, label: "Tokens", none: "There are no tokens but the node's own." });
    this.audit = new Table([{ title: "Time", text: (row) => full(row.at) }, { title: "Token", name: true, text: (row) => visible(row.token) }, { title: "From", wide: true, text: (row) => row.address }, { title: "What", text: (row) => `${row.method} ${visible(decodeURIComponent(row.path))}` }, { title: "About", wide: true, text: (row) => visible(row.about) }, { title: "", mark: (row) => `${row.status}`, show: (row) => badge(row.status < 400 ? "✓ done" : `✕ refused ${row.status}`, row.status < 400 ? "good" : "bad") }], { key: (row) => row.at + row.path, label: "Who did what", none: "Nothing was changed through a node yet." });
    put(this, h("div", { class: "head" }, h("h1", {}, "Access"), h("span", { class: "what" }, `you are ${store.me?.token}: ${(store.me?.roles || []).join(", ")}`), h("span", { class: "grow" }), may("admin") ? h("button", { class: "main", onclick: () => createToken().then(() => this.fetch()) }, "New token") : null, h("button", { onclick: () => ask("POST", "/logout").then(() => location.assign("/")) }, "Leave")), h("div", { class: "stack" }, card("Tokens", null, this.tokens.element), card("Who did what", null, this.audit.element)));
    this.fetch().catch(() => {});
  }

  async fetch() { this.tokens.update(await this.load("/tokens")); this.audit.update(await this.load("/audit")); }
}

for (const [tag, type] of [["hr-key", Key], ["hr-pipeline", Pipeline], ["hr-sessions", Sessions], ["hr-epochs", Epochs], ["hr-access", Access]]) define(tag, type);
