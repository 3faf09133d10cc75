/** The curves of one job: memory, progress, reported metrics. */

import { clock, number, percent, size } from "../format";
import type { Series } from "../types";
import { type Option, axis, common, niceStep, timeAxis, tip } from "./base";
import type { Palette } from "./palette";

const GRID = { left: 52, right: 14, top: 14, bottom: 26 };

interface AxisTip {
  value: number[];
  seriesName: string;
}

/** Curves over a common axis; `place` is the title of a tooltip, `text` a value in it. */
function curves(
  series: object[],
  axes: { grid?: object; xAxis: Option; yAxis: Option },
  place: (at: number) => string,
  text: (value: number) => string,
  palette: Palette,
): Option {
  return {
    ...common(palette, {
      trigger: "axis",
      formatter: (points: AxisTip[]) =>
        tip(
          place(points[0]?.value[0] ?? 0),
          points.map(({ seriesName, value: [, value] }) => [seriesName, value == null ? "" : text(value)]),
        ),
    }),
    grid: GRID,
    ...axes,
    series,
  };
}

function curve(name: string, data: number[][], color: string, more: object = {}): object {
  return { type: "line", name, data, showSymbol: false, lineStyle: { color, width: 1.5 }, itemStyle: { color }, ...more };
}

/** Points with the time in milliseconds. */
const inMilliseconds = (points: [number, number][]): number[][] => points.map(([at, value]) => [at * 1000, value]);

/** Points of the store, and those that came later. The store is up to a minute old. */
export function joined(stored: [number, number][], live: [number, number][]): [number, number][] {
  const last = stored.at(-1)?.[0] ?? 0;
  return [...stored, ...live.filter(([at]) => at > last)];
}

/** Bytes on the GPU of which an attempt holds most, what is reserved, and all that the GPU has. */
export function memoryOption(
  series: Series | null,
  attempt: number,
  live: [number, number][],
  palette: Palette,
  now: number,
): Option {
  const measured = series?.attempts.find((one) => one.attempt === attempt);
  const limit = series?.limit_bytes ?? null;
  const points = joined(measured?.memory ?? [], live);
  const amount = measured?.reserved_bytes ?? limit;
  const reserved =
    amount === null ? [] : [points[0], points.at(-1)].flatMap((point) => (point ? [[point[0] * 1000, amount]] : []));
  const highest = Math.max(amount ?? 0, ...points.map(([, bytes]) => bytes));
  const gib = 2 ** 30;
  const top = Math.max(gib / 4, limit !== null && highest > limit / 2 ? limit * 1.04 : highest * 1.15);
  return curves(
    [
      curve("used", inMilliseconds(points), palette.accent, {
        areaStyle: { color: palette.accent, opacity: 0.18 },
        markLine: limit === null ? undefined : limitLine(limit, palette),
      }),
      curve("reserved", reserved, palette.held, { lineStyle: { color: palette.held, width: 1.5, type: "dashed" } }),
    ],
    {
      xAxis: timeAxis(palette),
      yAxis: {
        type: "value",
        ...axis(palette, { formatter: (value: number) => size(value), showMaxLabel: false }),
        min: 0,
        max: top,
        interval: niceStep(top / gib) * gib,
      },
    },
    (at) => clock(at, now, true),
    size,
    palette,
  );
}

function limitLine(limit: number, palette: Palette): object {
  return {
    silent: true,
    symbol: "none",
    data: [{ yAxis: limit }],
    lineStyle: { color: palette.faint, type: "solid", width: 1 },
    label: { formatter: `GPU ${size(limit)}`, position: "insideEndBottom", color: palette.faint, fontSize: 10 },
  };
}

export function progressOption(points: [number, number][], palette: Palette, now: number): Option {
  const labels = axis(palette, { formatter: (value: number) => percent(value) });
  return curves(
    [curve("done", inMilliseconds(points), palette.good, { areaStyle: { color: palette.good, opacity: 0.15 } })],
    { xAxis: timeAxis(palette), yAxis: { type: "value", ...labels, min: 0, max: 1, splitNumber: 2 } },
    (at) => clock(at, now, true),
    percent,
    palette,
  );
}

/** A reported value by step, or by time if the job told no steps. */
export function metricOption(
  name: string,
  points: [number, number][],
  steps: boolean,
  place: number,
  palette: Palette,
  now: number,
): Option {
  const labels = axis(palette, { formatter: (value: number) => number(value) });
  const stepAxis = { type: "value", ...axis(palette, { showMaxLabel: false }), splitLine: { show: false } };
  const data = steps ? points : inMilliseconds(points);
  const colour = palette.series[place % palette.series.length] ?? "";
  return curves(
    [curve(name, data, colour, { showSymbol: points.length < 3 })],
    {
      grid: { ...GRID, left: 58 },
      xAxis: steps ? { ...stepAxis, min: "dataMin", max: "dataMax" } : timeAxis(palette),
      yAxis: { type: "value", ...labels, scale: true, splitNumber: 3 },
    },
    (at) => (steps ? `step ${number(at)}` : clock(at, now, true)),
    number,
    palette,
  );
}
