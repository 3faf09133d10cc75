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
  const curve = series?.attempts.find((one) => one.attempt === attempt);
  const limit = series?.limit_bytes ?? null;
  const points = joined(curve?.memory ?? [], live);
  const amount = curve?.reserved_bytes ?? limit;
  const used = points.map(([at, bytes]) => [at * 1000, bytes]);
  const reserved =
    amount === null ? [] : [points[0], points.at(-1)].flatMap((point) => (point ? [[point[0] * 1000, amount]] : []));
  const highest = Math.max(amount ?? 0, ...points.map(([, bytes]) => bytes));
  const gib = 2 ** 30;
  const top = Math.max(gib / 4, limit !== null && highest > limit / 2 ? limit * 1.04 : highest * 1.15);
  return {
    ...common(palette, {
      trigger: "axis",
      formatter: (points: AxisTip[]) =>
        tip(
          clock(points[0]?.value[0] ?? 0, now, true),
          points.map((point): [string, string] => [
            point.seriesName,
            point.value[1] === null ? "" : size(point.value[1]),
          ]),
        ),
    }),
    grid: GRID,
    xAxis: timeAxis(palette),
    yAxis: {
      type: "value",
      ...axis(palette, { formatter: (value: number) => size(value), showMaxLabel: false }),
      min: 0,
      max: top,
      interval: niceStep(top / gib) * gib,
    },
    series: [
      {
        type: "line",
        name: "used",
        data: used,
        showSymbol: false,
        lineStyle: { color: palette.accent, width: 1.5 },
        itemStyle: { color: palette.accent },
        areaStyle: { color: palette.accent, opacity: 0.18 },
        markLine:
          limit === null
            ? undefined
            : {
                silent: true,
                symbol: "none",
                data: [{ yAxis: limit }],
                lineStyle: { color: palette.faint, type: "solid", width: 1 },
                label: {
                  formatter: `GPU ${size(limit)}`,
                  position: "insideEndBottom",
                  color: palette.faint,
                  fontSize: 10,
                },
              },
      },
      {
        type: "line",
        name: "reserved",
        data: reserved,
        showSymbol: false,
        lineStyle: { color: palette.held, width: 1.5, type: "dashed" },
        itemStyle: { color: palette.held },
      },
    ],
  };
}

export function progressOption(points: [number, number][], palette: Palette, now: number): Option {
  return {
    ...common(palette, {
      trigger: "axis",
      formatter: (shown: AxisTip[]) =>
        tip(clock(shown[0]?.value[0] ?? 0, now, true), [["done", percent(shown[0]?.value[1] ?? 0)]]),
    }),
    grid: GRID,
    xAxis: timeAxis(palette),
    yAxis: {
      type: "value",
      ...axis(palette, { formatter: (value: number) => percent(value) }),
      min: 0,
      max: 1,
      splitNumber: 2,
    },
    series: [
      {
        type: "line",
        name: "done",
        data: points.map(([at, part]) => [at * 1000, part]),
        showSymbol: false,
        lineStyle: { color: palette.good, width: 1.5 },
        itemStyle: { color: palette.good },
        areaStyle: { color: palette.good, opacity: 0.15 },
      },
    ],
  };
}

/** A reported value by step, or by time if the job told no steps. */
export function metricOption(
  name: string,
  points: [number, number][],
  steps: boolean,
  colour: string,
  palette: Palette,
  now: number,
): Option {
  const data = steps ? points : points.map(([at, value]) => [at * 1000, value]);
  const place = (value: number): string => (steps ? `step ${number(value)}` : clock(value, now, true));
  return {
    ...common(palette, {
      trigger: "axis",
      formatter: (shown: AxisTip[]) => tip(place(shown[0]?.value[0] ?? 0), [[name, number(shown[0]?.value[1] ?? 0)]]),
    }),
    grid: { ...GRID, left: 58 },
    xAxis: steps
      ? {
          type: "value",
          ...axis(palette, { showMaxLabel: false }),
          splitLine: { show: false },
          min: "dataMin",
          max: "dataMax",
        }
      : timeAxis(palette),
    yAxis: {
      type: "value",
      ...axis(palette, { formatter: (value: number) => number(value) }),
      scale: true,
      splitNumber: 3,
    },
    series: [
      {
        type: "line",
        name,
        data,
        showSymbol: points.length < 3,
        lineStyle: { color: colour, width: 1.5 },
        itemStyle: { color: colour },
      },
    ],
  };
}
