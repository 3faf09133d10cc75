/** Charts of the past: GPU-hours by day, waiting against running, peak against reserved memory. */

import { day as dayText, duration, hours, size, span } from "../format";
import { type JobUsage, TONES, type Tone, type Usage } from "../types";
import { type Option, axis, common, named, niceStep, tip } from "./base";
import { type Palette, colourOf } from "./palette";

const GRID = { left: 56, right: 18, top: 16, bottom: 44 };

export interface Days {
  days: string[];
  groups: string[];
  /** Hours of a group on a day, in the order of both lists. */
  hours: number[][];
}

/** GPU-hours as a table of groups and days, without gaps between the days. Small groups become one. */
export function daysTable(usage: Usage, most = 7): Days {
  const days = everyDay(usage.days.map((one) => one.day));
  const totals = new Map<string, number>();
  for (const one of usage.days) totals.set(one.group, (totals.get(one.group) ?? 0) + one.gpu_hours);
  const ordered = [...totals].sort((one, other) => other[1] - one[1]).map(([group]) => group);
  const named = ordered.length > most ? ordered.slice(0, most - 1) : ordered;
  const groups = ordered.length > most ? [...named, OTHERS] : named;
  const table = groups.map(() => days.map(() => 0));
  for (const one of usage.days) {
    const row = table[groups.indexOf(named.includes(one.group) ? one.group : OTHERS)];
    const place = days.indexOf(one.day);
    if (row) row[place] = (row[place] ?? 0) + one.gpu_hours;
  }
  return { days, groups, hours: table };
}

export const OTHERS = "other groups";

/** All days from the first to the last. */
export function everyDay(days: string[]): string[] {
  const known = [...new Set(days)].sort();
  const [first, last] = [known[0], known.at(-1)];
  if (!first || !last) return [];
  const found: string[] = [];
  for (let at = Date.parse(`${first}T12:00:00Z`); at <= Date.parse(`${last}T12:00:00Z`); at += 86_400_000) {
    found.push(new Date(at).toISOString().slice(0, 10));
  }
  return found;
}

export function groupName(group: string): string {
  return group || "no group";
}

export function daysOption(usage: Usage, palette: Palette): Option {
  const table = daysTable(usage);
  return {
    ...common(palette, {
      trigger: "axis",
      axisPointer: { type: "shadow", shadowStyle: { color: palette.line, opacity: 0.35 } },
      formatter: (points: { axisValue: string; seriesName: string; value: number }[]) =>
        tip(
          points[0]?.axisValue ?? "",
          points.filter((point) => point.value > 0).map((point) => [point.seriesName, `${hours(point.value)} GPU-h`]),
        ),
    }),
    grid: { ...GRID, bottom: 28 },
    xAxis: {
      type: "category",
      data: table.days,
      ...axis(palette, { formatter: (day: string) => dayText(Date.parse(`${day}T12:00:00`)) }),
    },
    yAxis: {
      type: "value",
      ...axis(palette, { formatter: (value: number) => `${Number(value.toPrecision(3))} h` }),
      splitNumber: 4,
    },
    series: table.groups.map((group, index) => ({
      type: "bar",
      stack: "all",
      name: group === OTHERS ? OTHERS : groupName(group),
      data: table.hours[index],
      barMaxWidth: 46,
      itemStyle: {
        color: group === OTHERS ? palette.line : colourOf(usage.colours[group], palette),
        borderColor: palette.surface,
        borderWidth: 1,
      },
    })),
  };
}

/** Jobs as points, by how they ended, with a diagonal from the least to the most of both axes. */
function scatterOption(
  jobs: JobUsage[],
  point: (job: JobUsage) => [number, number],
  axes: { xAxis: Option; yAxis: Option },
  edge: { from: number; until: number; name: string },
  rows: (job: JobUsage) => [string, string][],
  palette: Palette,
): Option {
  const series = (name: string, symbol: string, color: string, tone: Tone): object => ({
    type: "scatter",
    name,
    symbol,
    symbolSize: 8,
    itemStyle: { color, opacity: 0.7 },
    data: jobs.filter((job) => TONES[job.state] === tone).map((job) => ({ value: point(job), job })),
    cursor: "pointer",
  });
  return {
    ...common(palette, {
      formatter: ({ data: { job } }: { data: { job: JobUsage } }) =>
        tip(`${job.label} ${job.title}`, [["state", job.state], ["group", job.group], ...rows(job)]),
    }),
    grid: GRID,
    ...axes,
    series: [
      series("done", "circle", palette.accent, "good"),
      series("cancelled", "rect", palette.faint, "faint"),
      series("failed", "triangle", palette.bad, "bad"),
      {
        type: "line",
        name: edge.name,
        silent: true,
        showSymbol: false,
        data: [edge.from, edge.until].map((value) => [value, value]),
        tooltip: { show: false },
        z: 1,
        lineStyle: { color: palette.faint, width: 1, type: "dashed" },
      },
    ],
  };
}

const LEAST_SECONDS = 1;
const MINUTE = 60;

/** The power of 60 seconds (1 s, 1 min, 1 h, 60 h) that is not below a time. */
export function roundedUp(seconds: number): number {
  let limit = MINUTE;
  while (limit < seconds) limit *= MINUTE;
  return limit;
}

/** Waiting time against run time on logarithmic axes; on the diagonal a job waited as long as it ran. */
export function waitingOption(usage: Usage, palette: Palette): Option {
  const jobs = usage.jobs.filter((job) => job.wait_seconds !== null && job.run_seconds !== null);
  const point = (job: JobUsage): [number, number] => [
    Math.max(LEAST_SECONDS, job.run_seconds ?? 0),
    Math.max(LEAST_SECONDS, job.wait_seconds ?? 0),
  ];
  const most = roundedUp(Math.max(...jobs.flatMap(point)));
  const logarithmic = (name: string, gap: number): Option => ({
    type: "log",
    logBase: MINUTE,
    ...axis(palette, { formatter: (value: number) => span(value) }),
    ...named(name, gap),
    min: LEAST_SECONDS,
    max: most,
  });
  return scatterOption(
    jobs,
    point,
    { xAxis: logarithmic("run time", 26), yAxis: logarithmic("waiting time", 42) },
    { from: LEAST_SECONDS, until: most, name: "waited as long as it ran" },
    (job) => [
      ["waited", duration(job.wait_seconds ?? 0)],
      ["ran", duration(job.run_seconds ?? 0)],
    ],
    palette,
  );
}

/** Peak against reserved memory; below the diagonal less would have been enough. */
export function memoryOption(usage: Usage, palette: Palette): Option {
  const gib = 2 ** 30;
  const jobs = usage.jobs.filter((job) => job.peak_vram_bytes !== null && job.reserved_bytes !== null);
  const point = (job: JobUsage): [number, number] => [
    (job.reserved_bytes ?? 0) / gib,
    (job.peak_vram_bytes ?? 0) / gib,
  ];
  const most = Math.max(1, ...jobs.flatMap(point)) * 1.08;
  const linear = (name: string, gap: number): Option => ({
    type: "value",
    ...axis(palette, { formatter: (value: number) => `${Number(value.toFixed(2))}G`, showMaxLabel: false }),
    ...named(name, gap),
    min: 0,
    max: most,
    interval: niceStep(most),
  });
  return scatterOption(
    jobs,
    point,
    { xAxis: linear("reserved", 26), yAxis: linear("peak in use", 38) },
    { from: 0, until: most, name: "all that was reserved" },
    (job) => [
      ["peak", size(job.peak_vram_bytes)],
      ["reserved", size(job.reserved_bytes)],
    ],
    palette,
  );
}
