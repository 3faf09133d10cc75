/** The curves of one job: memory, progress, reported metrics. */

import { clock, number, percent, size } from "../format";
import type { Series } from "../types";
import { type Option, axis, common, timeAxis, tip } from "./base";
import type { Palette } from "./palette";

const GRID = { left: 52, right: 14, top: 14, bottom: 26 };

interface AxisTip {
  value: number[];
  seriesName: string;
}

/** Bytes on the GPU of which it holds most, what is reserved, and all that the GPU has. */
export function memoryOption(series: Series, limit: number | null, palette: Palette, now: number): Option {
  const used = series.memory.map(([at, bytes]) => [at * 1000, bytes]);
  const reserved = series.memory.map(([at, , bytes]) => [at * 1000, bytes]);
  const highest = Math.max(0, ...series.memory.flatMap(([, one, other]) => [one ?? 0, other ?? 0]));
  const gib = 2 ** 30;
  return {
    ...common(palette),
    grid: GRID,
    tooltip: {
      ...(common(palette)["tooltip"] as object), trigger: "axis",
      formatter: (points: AxisTip[]) =>
        tip(clock(points[0]?.value[0] ?? 0, now, true), points.map((point): [string, string] => [point.seriesName, point.value[1] === null ? "" : size(point.value[1])])),
    },
    xAxis: timeAxis(palette),
    yAxis: {
      type: "value", ...axis(palette), min: 0, max: Math.max(gib / 4, limit !== null && highest > limit / 2 ? limit : highest * 1.15),
      axisLabel: { ...(axis(palette)["axisLabel"] as object), formatter: (value: number) => size(value) },
      splitNumber: 3,
    },
    series: [
      {
        type: "line", name: "used", data: used, showSymbol: false, lineStyle: { color: palette.accent, width: 1.5 }, itemStyle: { color: palette.accent },
        areaStyle: { color: palette.accent, opacity: 0.18 },
        markLine: limit === null ? undefined : {
          silent: true, symbol: "none", data: [{ yAxis: limit }], lineStyle: { color: palette.faint, type: "solid", width: 1 },
          label: { formatter: `GPU ${size(limit)}`, position: "insideEndBottom", color: palette.faint, fontSize: 10 },
        },
      },
      { type: "line", name: "reserved", data: reserved, step: "end", showSymbol: false, connectNulls: false, lineStyle: { color: palette.held, width: 1.5, type: "dashed" }, itemStyle: { color: palette.held } },
    ],
  };
}

export function progressOption(series: Series, palette: Palette, now: number): Option {
  return {
    ...common(palette),
    grid: GRID,
    tooltip: {
      ...(common(palette)["tooltip"] as object), trigger: "axis",
      formatter: (points: AxisTip[]) => tip(clock(points[0]?.value[0] ?? 0, now, true), [["done", percent(points[0]?.value[1] ?? 0)]]),
    },
    xAxis: timeAxis(palette),
    yAxis: { type: "value", ...axis(palette), min: 0, max: 1, splitNumber: 2, axisLabel: { ...(axis(palette)["axisLabel"] as object), formatter: (value: number) => percent(value) } },
    series: [
      {
        type: "line", name: "done", data: series.progress.map(([at, part]) => [at * 1000, part]), showSymbol: series.progress.length < 3,
        lineStyle: { color: palette.good, width: 1.5 }, itemStyle: { color: palette.good }, areaStyle: { color: palette.good, opacity: 0.15 },
      },
    ],
  };
}

export function metricOption(name: string, points: [number, number][], colour: string, palette: Palette): Option {
  return {
    ...common(palette),
    grid: { ...GRID, left: 58 },
    tooltip: {
      ...(common(palette)["tooltip"] as object), trigger: "axis",
      formatter: (shown: AxisTip[]) => tip(`step ${number(shown[0]?.value[0] ?? 0)}`, [[name, number(shown[0]?.value[1] ?? 0)]]),
    },
    xAxis: { type: "value", ...axis(palette), splitLine: { show: false }, min: "dataMin", max: "dataMax" },
    yAxis: { type: "value", ...axis(palette), scale: true, splitNumber: 3, axisLabel: { ...(axis(palette)["axisLabel"] as object), formatter: (value: number) => number(value) } },
    series: [{ type: "line", name, data: points, showSymbol: points.length < 3, lineStyle: { color: colour, width: 1.5 }, itemStyle: { color: colour } }],
  };
}
