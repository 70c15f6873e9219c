"use strict";
// The header: the headline, the line of the last day, the shares, and the details, which are folded.

const TREND = { width: 140, height: 36, gap: 3 }; // pixels

function showHeader() {
  const summary = report.summary || {}; // counts all VMs; with --apart, the report lists fewer
  const parts = headline({ vms: vms.length, ...summary }).split("`");
  byId("headline").replaceChildren(...parts.map((part, at) => (at % 2 ? element("code", {}, part) : part)));
  byId("outages").textContent = (summary.outages || {}).text || "";
  byId("shares").replaceChildren();
  for (const [state, listed] of counted(vms)) {
    const count = summary[state[0].toLowerCase() + state.slice(1)] ?? listed;
    const share = element("span", { class: state, title: `${count} ${words(state)}` });
    share.style.flexGrow = count;
    if (count) byId("shares").append(share);
  }
  showDetails(summary);
  showTrend((report.history || {}).apart || []);
}

function showDetails(summary) {
  const warnings = report.warnings || [];
  const texts = [summary.text, NFS, DATA.text, (summary.workloads || {}).text];
  const lines = texts.filter(Boolean).flatMap((text) => text.split("; "));
  byId("summary").replaceChildren(
    ...lines.map((line) => element("li", {}, line)),
    ...warnings.map((warning) => element("li", { class: "problem" }, warning)),
  );
  const warned = warnings.length ? [", ", element("b", { class: "problem" }, plural(warnings.length, "warning"))] : [];
  byId("more").querySelector("summary").replaceChildren("All counts, NFS and data", ...warned);
}

function showSource(problem) {
  const { cluster, source, time } = report;
  const when = time &&
    new Date(time).toLocaleString("en", { dateStyle: "medium", timeStyle: INTERVAL ? "medium" : "short" });
  byId("source").textContent = [cluster || source, when, problem && `not updated since: ${problem}`]
    .filter(Boolean).join(", ");
  byId("source").classList.toggle("problem", Boolean(problem));
}

// How many VMs were apart in the last day, as [seconds, VMs].
function showTrend(points) {
  byId("trend").hidden = points.length < 2;
  if (points.length < 2) return;
  const counts = points.map(([, count]) => count);
  const [least, most] = [Math.min(...counts), Math.max(...counts)].map((count) => count.toLocaleString("en"));
  const text = `${least} to ${most} apart in the last day`;
  const canvas = drawn("svg", { viewBox: `0 0 ${TREND.width} ${TREND.height}`, role: "img", "aria-label": text });
  const line = trendPoints(points).map((point) => point.join());
  const [left, right] = [TREND.gap, TREND.width - TREND.gap].map((x) => `${x},${TREND.height}`);
  canvas.append(drawn("polygon", { points: [left, ...line, right].join(" ") }));
  canvas.append(drawn("polyline", { points: line.join(" ") }));
  byId("trend").replaceChildren(canvas, element("figcaption", {}, text));
}

function trendPoints(points) {
  const [first, last] = [points[0][0], points.at(-1)[0]];
  const most = Math.max(1, ...points.map(([, count]) => count)); // the line begins at 0: a small change looks small
  const { width, height, gap } = TREND;
  return points.map(([time, count]) => [
    Math.round(gap + ((width - 2 * gap) * (time - first)) / Math.max(1, last - first)),
    Math.round(height - gap - ((height - 2 * gap) * count) / most),
  ]);
}
