// Charts, updates and copying. Pages can be read without this file.
"use strict";

// A figure draws columns of a table. A click on a chart opens the records of the cell.
function charts(part = document) {
	const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
	const strokes = { calls: "--link", delivered: "--link", errors: "--bad", refused: "--good", saved: "--good", secrets: "--soft" };
	const figures = [...part.querySelectorAll("figure[data-chart]")];
	const rowsOf = figure => [...document.querySelectorAll("#" + figure.dataset.chart + " tbody tr[data-x]")];
	for (const figure of figures) figure.classList.toggle("drawn", rowsOf(figure).length > 1); // before widths are asked for
	for (const figure of figures) {
		const rows = rowsOf(figure);
		const names = figure.dataset.series.split(" ");
		figure.querySelector(".uplot")?.remove();
		if (rows.length < 2) continue;
		const cell = (row, name) => row.querySelector(`[data-s="${name}"]`);
		const utc = (ts, from, to) => new Date(ts * 1e3).toISOString().replace("T", " ").slice(from, to);
		const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 } };
		const data = [rows.map(r => Number(r.dataset.x)), ...names.map(n => rows.map(r => Number(cell(r, n).dataset.v)))];
		const chart = new uPlot({
			width: figure.clientWidth - 20, height: 200, cursor: { drag: { setScale: false } },
			tzDate: ts => uPlot.tzDate(new Date(ts * 1e3), "Etc/UTC"),
			series: [{ label: "UTC", value: (u, ts) => ts == null ? "" : utc(ts, 0, 16) }, ...names.map(n => ({ label: n, stroke: color(strokes[n]), width: 2, points: { show: rows.length < 60 } }))],
			axes: [{ ...axis, values: (u, all, i, space, step) => all.map(ts => step < 86400 ? utc(ts, 11, 16) : utc(ts, 5, 10)) }, { ...axis, size: 70, values: (u, all) => all.map(v => v.toLocaleString("en", { notation: "compact" })) }],
		}, data, figure);
		chart.root.setAttribute("role", "img");
		chart.root.setAttribute("aria-label", figure.querySelector("figcaption").textContent + ". The table has the figures.");
		chart.over.addEventListener("click", () => {
			const row = rows[chart.cursor.idx];
			if (!row) return;
			const at = names.map((n, i) => ({ link: cell(row, n).querySelector("a"), far: Math.abs(chart.valToPos(data[i + 1][chart.cursor.idx], "y") - chart.cursor.top) }))
				.filter(c => c.link).sort((a, b) => a.far - b.far)[0];
			location.href = (at ? at.link : row.querySelector("a")).href;
		});
	}
}

// Parts of a page that are marked are loaded again when the console says that something changed. What is as it was
// stays: a click or a selection in it is not lost.
function updates(shown) {
	if (!document.querySelector("[data-live]")) return;
	const status = document.getElementById("live");
	let busy = false, again = false, last = 0;
	const load = async () => {
		if (busy) { again = true; return; }
		busy = true;
		await new Promise(done => setTimeout(done, Math.max(0, last + 1000 - Date.now())));
		last = Date.now();
		try {
			const answer = await fetch(location.href, { headers: { Accept: "text/html", "X-Live": "1" } });
			const page = new DOMParser().parseFromString(await answer.text(), "text/html");
			for (const part of document.querySelectorAll("[data-live]")) {
				const next = page.getElementById(part.id);
				if (!next && part.id === "building") location.reload();
				if (!next || next.innerHTML === shown.get(part.id) || part.contains(document.activeElement) || part.querySelector("figure:hover")) continue;
				shown.set(part.id, next.innerHTML);
				part.replaceChildren(...next.childNodes);
				enhance(part);
			}
		} catch { /* the next event tries again */ }
		busy = false;
		if (again) { again = false; load(); }
	};
	let events;
	const listen = () => {
		events = new EventSource("/events");
		events.addEventListener("open", () => { status.textContent = "· live"; load(); }); // what changed before it was open
		events.addEventListener("error", () => { status.textContent = "· not live"; });
		events.addEventListener("changed", load);
	};
	listen();
	// A page that the browser keeps for its Back button keeps no stream: there are six to a host.
	addEventListener("pagehide", () => events.close());
	addEventListener("pageshow", shown => { if (shown.persisted) listen(); });
}

function enhance(part = document) {
	charts(part);
	for (const code of part.querySelectorAll("code.copy")) {
		if (code.nextElementSibling?.matches("button")) continue;
		const button = document.createElement("button");
		button.type = "button";
		button.textContent = "Copy";
		button.addEventListener("click", async () => {
			await navigator.clipboard.writeText(code.textContent);
			button.textContent = "Copied";
		});
		code.after(" ", button);
	}
	for (const form of part.querySelectorAll("form.filters")) {
		form.addEventListener("submit", () => { // short addresses
			for (const input of form.elements) if (input.value === "") input.disabled = true;
		});
	}
}

const served = new Map([...document.querySelectorAll("[data-live]")].map(part => [part.id, part.innerHTML]));
enhance();
updates(served);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts());
