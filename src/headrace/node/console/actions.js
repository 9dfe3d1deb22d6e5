// Acting: every change has a preview, says the command for the same, and what destroys wants the name.
import { announce, copyable, h, put } from "./dom.js";
import { ask, path } from "./api.js";
import { number } from "./format.js";
import { go, link } from "./router.js";

// fields: [{name, title, value, options, hint}]; run(values, dry) asks the node; typed: what has to be typed.
export function act({
	title,
	about,
	fields = [],
	run,
	preview = false,
	typed = "",
	command,
	verb = "Do it",
	bad = false,
	done,
}) {
	return new Promise((resolve) => {
		const inputs = Object.fromEntries(
			fields.map((field) => [
				field.name,
				field.options
					? h(
							"select",
							{ name: field.name },
							field.options.map((each) => h("option", { value: each, selected: each === field.value }, each)),
						)
					: field.area
						? h("textarea", { name: field.name }, field.value || "")
						: h("input", {
								name: field.name,
								value: field.value || "",
								placeholder: field.hint || "",
								type: field.type || "text",
								step: field.type === "number" && "any",
								size: 30,
							}),
			]),
		);
		const values = () => Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value]));
		const problem = h("p", { class: "problem", role: "alert" });
		const shown = h("div", { class: "preview", role: "status" }, preview ? "…" : "");
		const name = h("input", { "aria-label": `type ${typed}`, autocomplete: "off", size: 30 });
		const said = h("div");
		const button = h("button", { class: bad ? "bad" : "main", type: "submit", disabled: Boolean(typed) }, verb);
		const dialog = h(
			"dialog",
			{ "aria-label": title },
			h(
				"form",
				{ onsubmit: submit },
				h("header", h("h2", title)),
				h(
					"div.in",
					about ? h("p.sub", about) : null,
					fields.map((field) => h("label.field", field.title, inputs[field.name])),
					preview ? shown : null,
					typed ? h("label.field", `Type ${typed} to go on`, name) : null,
					said,
					problem,
				),
				h("footer", h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), button),
			),
		);
		const say = () => command && put(said, h("span.sub", "At the command line: "), copyable(command(values())));
		async function look() {
			if (!preview) return;
			try {
				put(shown, told(await run(values(), true)));
				problem.textContent = "";
			} catch (error) {
				put(shown, "nothing would be changed");
				problem.textContent = error.message;
			}
		}
		async function submit(event) {
			event.preventDefault();
			button.disabled = true;
			try {
				const answer = await run(values(), false);
				announce(`done: ${title}`);
				if (done) {
					put(dialog.querySelector(".in"), done(answer));
					button.remove();
					resolve(answer);
					return;
				}
				dialog.close();
				resolve(answer);
			} catch (error) {
				problem.textContent = error.message;
				button.disabled = false;
			}
		}
		let timer = 0;
		dialog.addEventListener("input", () => {
			if (typed) button.disabled = name.value !== typed;
			say();
			clearTimeout(timer);
			timer = setTimeout(look, 250);
		});
		dialog.addEventListener("close", () => dialog.remove());
		document.body.append(dialog);
		dialog.showModal();
		say();
		look();
	});
}

function told(answer) {
	if (!answer) return "done";
	const facts = [];
	const count = (what, text) => {
		if (what) facts.push(h("li", `${number(what)} ${text}`));
	};
	if (answer.done) facts.push(h("li", answer.done));
	for (const [name, value] of Object.entries(answer.counts || {})) count(value, name.replaceAll("_", " "));
	if (answer.cuts) count(answer.cuts.reduce((sum, each) => sum + each.removed_events, 0) || 0, "events would go");
	for (const loss of answer.losses || [])
		facts.push(h("li.problem", `${loss.group} would lose ${number(loss.lost_events)} events that it has not acked`));
	for (const [field, text] of [
		["again_events", "events come again"],
		["repeated_events", "events come again"],
		["skipped_events", "events are skipped"],
		["letters", "letters"],
		["refused", "stay where they are: they died too often"],
	])
		count(answer[field], text);
	if (answer.seen_by?.length) facts.push(h("li", `${answer.seen_by.join(", ")} see them too`));
	if (answer.units) count(answer.units.length, "units");
	return facts.length ? h("ul", facts) : "nothing would change";
}

const list = (text) => text.split(/[\s,]+/).filter(Boolean);
// As a shell takes them; what is not given yet stands in capitals.
export const quote = (text) => (/^[\w./:,@%+-]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`);
export const given = (text, name) => (text ? quote(text) : name);
export const option = (name, text) => (text ? ` --${name} ${quote(text)}` : "");
const both = (name) => {
	const [first, ...rest] = name.split("/");
	return `${quote(first)} ${quote(rest.join("/"))}`;
};
const zoned = (text) => (text ? new Date(text).toISOString() : null);
export const group = (name, ...rest) => path("groups", name, ...rest);
const stream = (name, ...rest) => path("streams", name, ...rest);

export const createStream = () =>
	act({
		title: "New stream",
		about: "A stream is a named log that captures the subjects that match its filters.",
		fields: [
			{ name: "stream", title: "Name", hint: "orders" },
			{ name: "subjects", title: "Subjects, with commas", hint: "orders.>" },
			{ name: "segments", title: "Segments", value: "4", type: "number" },
		],
		command: (v) =>
			`headrace stream create ${given(v.stream, "NAME")} --subjects ${given(list(v.subjects).join(","), "SUBJECTS")}${option("segments", v.segments)}`,
		verb: "Make it",
		run: (v) =>
			ask("POST", "/streams", {
				body: { stream: v.stream, subjects: list(v.subjects), segments: Number(v.segments) || null },
			}).then((answer) => {
				go(link("streams", v.stream));
				return answer;
			}),
	});

export const createGroup = () =>
	act({
		title: "New group",
		fields: [
			{ name: "kind", title: "Kind", options: ["shared", "elastic", "static", "reader"], value: "shared" },
			{ name: "group", title: "Name", hint: "billing" },
			{ name: "stream", title: "Stream (static, elastic, reader)", hint: "orders" },
			{ name: "filter", title: "Filter (shared, elastic)", hint: "orders.*.*" },
			{ name: "wildcards", title: "Wildcards that make the key (elastic)", hint: "2" },
			{ name: "max_members", title: "At most so many members, or partitions", value: "16", type: "number" },
			{ name: "members", title: "Members, with commas", hint: "m1, m2" },
		],
		command: (v) => {
			const name = given(v.group, "NAME");
			const stream = given(v.stream, "STREAM");
			const members = option("members", list(v.members).join(","));
			if (v.kind === "shared")
				return `headrace group shared declare ${name} ${given(v.filter, "FILTER")} --start earliest`;
			if (v.kind === "reader") return `headrace reader create ${name} --streams ${stream}`;
			const key = v.kind === "elastic" ? option("wildcards", list(v.wildcards).join(",")) : "";
			const most = ` --max-members ${v.max_members || 16}`;
			return `headrace group ${v.kind} create ${stream} ${name}${most}${option("filter", v.filter)}${key}${members}`;
		},
		verb: "Make it",
		run: (v) =>
			ask("POST", "/groups", {
				body: {
					kind: v.kind,
					group: v.group,
					stream: v.kind === "shared" ? "" : v.stream,
					filter: v.filter,
					wildcards: list(v.wildcards).map(Number),
					max_members: Number(v.max_members) || 16,
					members: list(v.members),
				},
			}).then((answer) => {
				go("/groups");
				return answer;
			}),
	});

export const removeStream = (name) =>
	act({
		title: `Remove stream ${name}`,
		about: "All its events go, for good.",
		preview: true,
		typed: name,
		bad: true,
		verb: "Remove it",
		fields: [{ name: "force", title: "Also with groups that consume it", options: ["no", "yes"], value: "no" }],
		command: (v) => `headrace stream rm ${quote(name)} --yes${v.force === "yes" ? " --force" : ""}`,
		run: (v, dry) =>
			ask("DELETE", stream(name), { body: { name, dry_run: dry, force: v.force === "yes" } }).then((answer) => {
				if (!dry) go("/streams");
				return answer;
			}),
	});

export const trimStream = (name) =>
	act({
		title: `Trim ${name}`,
		about: "Events before a time go, for good; without a time, what its settings let go.",
		preview: true,
		typed: name,
		bad: true,
		verb: "Trim it",
		fields: [{ name: "before", title: "Before", type: "datetime-local" }],
		command: (v) => `headrace stream trim ${quote(name)}${option("before", zoned(v.before))} --yes`,
		run: (v, dry) => ask("POST", stream(name, "trim"), { body: { before: zoned(v.before), dry_run: dry } }),
	});

export const splitSegment = (name, segment) =>
	act({
		title: `Split segment ${segment} of ${name}`,
		about: "It is sealed, and its parts go on with its keys; nothing is lost and order within a key stays.",
		fields: [{ name: "into", title: "Into", value: "2", type: "number" }],
		verb: "Split it",
		command: (v) => `headrace stream scale ${quote(name)} --split ${segment} --into ${v.into}`,
		run: (v) => ask("POST", stream(name, "scale"), { body: { segments: [segment], into: Number(v.into) } }),
	});

export function mergeSegments(name, segments, each) {
	const next = segments.find(
		(one) =>
			!one.sealed_at && one.segment !== each.segment && (one.key_from === each.key_to || one.key_to === each.key_from),
	);
	return act({
		title: next ? `Merge segments ${each.segment} and ${next.segment}` : "There is no neighbour to merge with",
		verb: "Merge them",
		command: () => `headrace stream scale ${quote(name)} --merge ${each.segment},${next?.segment ?? "?"}`,
		run: () =>
			ask("POST", stream(name, "scale"), { body: { segments: [each.segment, next?.segment ?? each.segment] } }),
	});
}

export const streamSettings = (data) =>
	act({
		title: `Settings of ${data.line.stream}`,
		about: "What is empty stays as it is.",
		fields: [
			{ name: "age", title: "Keep for so many hours", type: "number" },
			{ name: "events", title: "Keep so many events", type: "number" },
			{ name: "rate", title: "Split and merge by so many events a second for each segment", type: "number" },
		],
		verb: "Change them",
		command: (v) =>
			`headrace stream set ${quote(data.line.stream)}${option("retention-age", v.age && `${v.age}h`)}${option("retention-events", v.events)}${option("scale-events", v.rate)}`,
		run: (v) =>
			ask("PATCH", stream(data.line.stream), {
				body: {
					revision: data.revision,
					retention:
						v.age || v.events
							? {
									type: "limits",
									age_s: v.age ? Math.round(v.age * 3600) : null,
									events: v.events ? Number(v.events) : null,
								}
							: null,
					scaling: v.rate ? { type: "events", target_per_s: Number(v.rate) } : null,
				},
			}),
	});

export const publishEvent = (config) =>
	act({
		title: "Publish an event",
		fields: [
			{ name: "subject", title: "Subject", hint: config?.subjects?.[0] || "orders.eu.42" },
			{ name: "key", title: "Key (may be empty)" },
			{ name: "value", title: "Value", area: true },
		],
		verb: "Publish",
		command: (v) => `headrace publish ${given(v.subject, "SUBJECT")} ${given(v.value, "VALUE")}${option("key", v.key)}`,
		run: (v) => ask("POST", "/publish", { body: { subject: v.subject, key: v.key || null, value: v.value } }),
	});

export const seekGroup = (name) =>
	act({
		title: `Seek ${name}`,
		about: "It takes the units from their owners; running members go on at the new place.",
		preview: true,
		typed: name,
		verb: "Seek",
		bad: true,
		fields: [{ name: "to", title: "To: earliest, latest, a time with its zone, or SEGMENT:OFFSET", value: "earliest" }],
		command: (v) => `headrace group seek ${quote(name)} --to ${given(v.to, "PLACE")}`,
		run: (v, dry) => ask("POST", group(name, "seek"), { body: { to: v.to, dry_run: dry } }),
	});

export const changeMembers = (name) =>
	act({
		title: `Members of ${name}`,
		fields: [
			{ name: "add", title: "Add, with commas" },
			{ name: "drop", title: "Drop, with commas" },
		],
		verb: "Change them",
		command: (v) =>
			["add", "drop"]
				.filter((verb) => v[verb] || (verb === "add" && !v.drop))
				.map((verb) => `headrace group members ${verb} ${both(name)} ${given(list(v[verb]).join(","), "MEMBERS")}`)
				.join(" && "),
		run: (v) => ask("POST", group(name, "members"), { body: { add: list(v.add), drop: list(v.drop) } }),
	});

export const changeMapping = (name) =>
	act({
		title: `Who has which partitions of ${name}`,
		about: "All partitions have to be there. Nothing: it distributes them by itself.",
		fields: [{ name: "mappings", title: "Members and their partitions", hint: "m1:0,1 m2:2,3" }],
		verb: "Change it",
		command: (v) => `headrace group mapping ${v.mappings ? "set" : "unset"} ${both(name)} ${v.mappings}`.trim(),
		run: (v) =>
			ask("POST", group(name, "mapping"), {
				body: {
					mappings: v.mappings
						? Object.fromEntries(
								v.mappings.split(/\s+/).map((each) => {
									const [member, partitions = ""] = each.split(":");
									return [member, list(partitions).map(Number)];
								}),
							)
						: null,
				},
			}),
	});

export const endPublisher = (stream, name) =>
	act({
		title: `Do without ${name}`,
		about:
			"It is fenced. Release: what it left counts. Rollback: that is taken back. Abort: the stream ends, for good.",
		preview: true,
		typed: name,
		bad: true,
		verb: "End it",
		fields: [
			{ name: "how", title: "How", options: ["release", "rollback", "abort"], value: "release" },
			{ name: "reason", title: "Why (abort)" },
		],
		command: (v) =>
			`headrace epoch ${v.how} ${quote(stream)} ${quote(name)}${v.how === "abort" ? ` --reason ${given(v.reason, "WHY")}` : ""}`,
		run: (v, dry) =>
			ask("POST", path("epochs", stream, "publishers", name, "end"), {
				body: { how: v.how, reason: v.reason, name, dry_run: dry },
			}),
	});

export const stepDown = (name, member) =>
	act({
		title: `Have ${member} step down`,
		about: "Its active instance gives its units up; a standby takes over.",
		verb: "Step down",
		command: () => `headrace group step-down ${both(name)} ${quote(member)}`,
		run: () => ask("POST", group(name, "step-down"), { body: { member } }),
	});

export const removeGroup = (name, kind) =>
	act({
		title: `Remove group ${name}`,
		about: "Its progress and its dead letters go, for good; the stream stays.",
		preview: true,
		typed: name,
		bad: true,
		verb: "Remove it",
		fields: [{ name: "force", title: "Also with live members", options: ["no", "yes"], value: "no" }],
		command: (v) =>
			kind === "shared"
				? `headrace group shared rm ${quote(name)}${v.force === "yes" ? " --force" : ""}`
				: kind === "reader"
					? `headrace reader rm ${quote(name.slice(7))} --yes`
					: `headrace group ${kind} rm ${both(name)} --yes`,
		run: (v, dry) =>
			ask("DELETE", group(name), { body: { name, dry_run: dry, force: v.force === "yes" } }).then((answer) => {
				if (!dry) go("/groups");
				return answer;
			}),
	});

export const putBackLetters = (name) =>
	act({
		title: `Put back dead letters of ${name}`,
		about: "Each is delivered again, once.",
		preview: true,
		verb: "Put them back",
		fields: [{ name: "reason", title: "Only those whose reason holds" }],
		command: (v) => `headrace group dead put-back ${quote(name)}${option("reason", v.reason) || " --all"} --yes`,
		run: (v, dry) =>
			ask("POST", group(name, "dead-letters", "put-back"), { body: { reason: v.reason || null, dry_run: dry } }),
	});

export const discardLetters = (name) =>
	act({
		title: `Discard dead letters of ${name}`,
		about: "They are forgotten, for good.",
		preview: true,
		typed: name,
		bad: true,
		verb: "Discard them",
		fields: [{ name: "reason", title: "Only those whose reason holds" }],
		command: (v) => `headrace group dead discard ${quote(name)}${option("reason", v.reason) || " --all"} --yes`,
		run: (v, dry) =>
			ask("POST", group(name, "dead-letters", "discard"), { body: { reason: v.reason || null, dry_run: dry } }),
	});

export const removeSession = (name) =>
	act({
		title: `Remove session ${name}`,
		preview: true,
		typed: name,
		bad: true,
		verb: "Remove it",
		command: () => `headrace session rm ${quote(name)}`,
		run: (v, dry) => ask("DELETE", path("sessions", name), { body: { name, dry_run: dry } }),
	});

export const createToken = () =>
	act({
		title: "New token",
		fields: [
			{ name: "token", title: "Name", hint: "grafana" },
			{ name: "role", title: "Role", options: ["view", "read", "publish", "consume", "admin"], value: "view" },
			{ name: "subjects", title: "Only these subjects, with commas" },
			{ name: "days", title: "Good for so many days", type: "number" },
		],
		verb: "Make it",
		command: (v) =>
			`headrace token create ${given(v.token, "NAME")} --role ${v.role}${list(v.subjects)
				.map((each) => option("subjects", each))
				.join("")}${option("expires", v.days && `${v.days}d`)}`,
		run: (v) =>
			ask("POST", "/tokens", {
				body: {
					token: v.token,
					roles: [v.role],
					subjects: list(v.subjects),
					expires_s: v.days ? Number(v.days) * 86400 : null,
				},
			}),
		done: (answer) => [h("p", "Keep it: it is stored as a hash, and never shown again."), copyable(answer.secret)],
	});

export const removeToken = (name) =>
	act({
		title: `Remove token ${name}`,
		about: "Whoever has it is not let in any more.",
		typed: name,
		bad: true,
		verb: "Remove it",
		command: () => `headrace token rm ${quote(name)}`,
		run: () => ask("DELETE", path("tokens", name)),
	});
