/** Charts of a sweep: the best so far, parallel coordinates, one parameter, learning curves. */

import { number } from "../format";
import type { SweepView, SweepAxis, SweepCurve, SweepPage, SweepPoint } from "../types";
import { type Option, axis, common, named, tip } from "./base";
import type { Palette } from "./palette";
import { isBest, scalar, scaleOf, stepLine, tick } from "./sweep_data";

const GRID = { left: 56, right: 18, top: 16, bottom: 44 };
const DIM = 0.12;
const MANY = 400;

type Chosen = ReadonlySet<number> | null;

/** An axis over the values of trials. */
function axisFor(one: SweepAxis, values: (number | null)[], palette: Palette): Option {
  const scale = scaleOf(one, values);
  if (scale.type === "category")
    return { ...axis(palette), ...scale, name: one.name, data: one.names, splitLine: { show: false } };
  const look = axis(palette, { formatter: tick });
  return { ...look, ...scale, name: one.name, scale: true, splitNumber: 4, minorTick: { show: false } };
}

function column(points: SweepPoint[], place: number): (number | null)[] {
  return points.map((point) => point.line.at(place) ?? null);
}

function trialTip(sweep: SweepView): (one: { data: { point?: SweepPoint } }) => HTMLElement | string {
  return ({ data: { point } }) => (point ? tipOf(point, sweep) : "");
}

function tipOf({ trial }: SweepPoint, sweep: SweepView): HTMLElement {
  return tip(`trial ${trial.number}`, [
    ["state", trial.state === "stopped" ? "stopped early" : trial.state],
    ...sweep.objectives.map((one): [string, string] => [one.name, scalar(trial.values[one.name])]),
    ...Object.entries(trial.params).map(([name, value]): [string, string] => [name, scalar(value)]),
  ]);
}

/** Trials as points: those that ended by themselves, and those that were stopped early. */
function dots(
  points: SweepPoint[],
  place: (point: SweepPoint) => (number | null)[],
  chosen: Chosen,
  palette: Palette,
): object[] {
  const many = points.length > MANY;
  const series = (name: string, symbol: string, colour: string, stopped: boolean): object => ({
    type: "scatter",
    name,
    symbol,
    symbolSize: many ? 5 : 8,
    cursor: "pointer",
    itemStyle: { color: colour },
    data: points
      .filter((point) => (point.trial.state === "stopped") === stopped)
      .map((point) => ({
        value: place(point),
        point,
        itemStyle: { opacity: chosen && !chosen.has(point.trial.number) ? DIM : many ? 0.5 : 0.75 },
      })),
  });
  return [
    series("stopped early", "diamond", palette.others, true),
    series("ended by itself", "circle", palette.accent, false),
  ];
}

function valueAxis(page: SweepPage, palette: Palette): Option {
  const one = page.axes.at(-1);
  if (!one) return { type: "value", ...axis(palette) };
  return { ...axisFor(one, column(page.points, -1), palette), nameLocation: "middle", nameGap: 42 };
}

/** All trials in the order in which they ended, and the best value so far. */
export function bestOption(page: SweepPage, chosen: Chosen, palette: Palette): Option {
  const last = Math.max(1, page.points.at(-1)?.place ?? 1);
  return {
    ...common(palette, { formatter: trialTip(page.sweep) }),
    grid: GRID,
    xAxis: {
      type: "value",
      ...axis(palette, { showMaxLabel: false }),
      ...named("trials that ended", 26),
      min: 0,
      max: last + 1,
      minInterval: 1,
      splitLine: { show: false },
    },
    yAxis: valueAxis(page, palette),
    series: [
      ...dots(page.points, (point) => [point.place, point.line.at(-1) ?? null], chosen, palette),
      {
        type: "line",
        name: "best so far",
        step: "end",
        silent: true,
        showSymbol: false,
        z: 4,
        data: stepLine(page.steps, last),
        lineStyle: { color: palette.good, width: 2 },
        itemStyle: { color: palette.good },
      },
    ],
  };
}

/** The value of the first objective against one parameter. */
export function parameterOption(page: SweepPage, name: string, chosen: Chosen, palette: Palette): Option {
  const place = page.axes.slice(0, -1).findIndex((one) => one.name === name);
  const found = page.axes[place];
  const having = page.points.filter((point) => typeof point.line[place] === "number");
  return {
    ...common(palette, { formatter: trialTip(page.sweep) }),
    grid: GRID,
    xAxis: found
      ? { ...axisFor(found, column(having, place), palette), nameLocation: "middle", nameGap: 26 }
      : { type: "value", ...axis(palette) },
    yAxis: valueAxis(page, palette),
    series: dots(having, (point) => [point.line[place] ?? null, point.line.at(-1) ?? null], chosen, palette),
  };
}

export function axisId(place: number): string {
  return `axis-${place}`;
}

/** The place of the axis with this id. */
export function axisPlace(id: string): number {
  return Number(id.slice("axis-".length));
}

/** A line for each trial: grey for all, the best tenth in colour. Drag along an axis to choose a part of it. */
export function parallelOption(page: SweepPage, narrow: boolean, palette: Palette): Option {
  const lines = (name: string, best: boolean, style: object): object => ({
    type: "parallel",
    name,
    parallelIndex: 0,
    z: best ? 3 : 2,
    lineStyle: style,
    inactiveOpacity: 0.04,
    activeOpacity: best ? 0.9 : 0.45,
    progressive: 0,
    data: page.points
      .filter((point) => isBest(point) === best)
      .map((point) => ({ value: point.line.map((value) => value ?? "-"), point })),
  });
  const faint = page.points.length > MANY ? 0.2 : 0.4;
  return {
    ...common(palette, { trigger: "item", formatter: trialTip(page.sweep) }),
    parallel: {
      layout: narrow ? "vertical" : "horizontal",
      left: narrow ? 24 : 52,
      right: narrow ? 36 : 64,
      top: narrow ? 34 : 38,
      bottom: narrow ? 34 : 20,
    },
    parallelAxis: page.axes.map((one, place) => parallelAxis(page, one, place, narrow, palette)),
    series: [
      lines("all trials", false, { color: palette.others, width: 1, opacity: faint }),
      lines("the best 10 %", true, { color: palette.accent, width: 1.8, opacity: 0.9 }),
    ],
  };
}

function parallelAxis(page: SweepPage, one: SweepAxis, place: number, narrow: boolean, palette: Palette): Option {
  const isValue = place === page.axes.length - 1;
  // The smallest value is the best: draw it at the top, so that good lines end there.
  const inverse = isValue && page.sweep.objectives[0]?.goal === "min" && !narrow;
  return {
    ...axisFor(one, column(page.points, place), palette),
    id: axisId(place),
    dim: place,
    splitNumber: 4,
    nameLocation: narrow || inverse ? "start" : "end",
    nameGap: 14,
    nameTextStyle: {
      color: isValue ? palette.text : palette.faint,
      fontSize: 12,
      fontWeight: isValue ? 600 : 400,
      align: narrow ? "left" : "center",
      verticalAlign: narrow ? "bottom" : "middle",
      padding: narrow ? [0, 0, 12, 14] : 0,
    },
    inverse,
    axisLine: { lineStyle: { color: palette.faint, width: 1 } },
    axisLabel: {
      ...(axis(palette)["axisLabel"] as object),
      ...(one.names.length ? {} : { formatter: tick }),
      backgroundColor: `${palette.surface}cc`,
      padding: [1, 3],
      borderRadius: 2,
    },
    areaSelectStyle: { width: 18, borderWidth: 1, borderColor: palette.accent, color: palette.accent, opacity: 0.25 },
  };
}

interface Summary {
  low: number;
  middle: number;
  high: number;
}

/** The lowest, the median and the highest of some values. */
export function summaryOf(values: number[]): Summary | null {
  const sorted = [...values].sort((one, other) => one - other);
  const [low, high] = [sorted[0], sorted.at(-1)];
  const middle = sorted[Math.floor((sorted.length - 1) / 2)];
  return low === undefined || high === undefined || middle === undefined ? null : { low, middle, high };
}

/** Values by step of all trials; the best one stands out. */
export function curvesOption(page: SweepPage, chosen: Chosen, palette: Palette): Option {
  const best = page.sweep.best[0]?.trials[0];
  const name = page.sweep.objectives[0]?.name ?? "";
  const values = page.curves.flatMap((curve) => curve.points.map(([, value]) => value));
  const ordered = [...page.curves].sort((one, other) => Number(one.trial === best) - Number(other.trial === best));
  const scale = scaleOf({ name, log: page.axes.at(-1)?.log ?? false, names: [] }, values);
  return {
    ...common(palette, {
      trigger: "axis",
      formatter: (points: { seriesName: string; value: [number, number] }[]) => stepTip(points, best),
    }),
    grid: GRID,
    xAxis: {
      type: "value",
      ...axis(palette),
      ...named("step", 26),
      min: "dataMin",
      max: "dataMax",
      splitLine: { show: false },
    },
    yAxis: {
      ...axis(palette, { formatter: tick }),
      ...scale,
      scale: true,
      splitNumber: 4,
      ...named(name, 42),
    },
    series: ordered.map((curve) => curveSeries(curve, curve.trial === best, chosen, palette)),
  };
}

function curveSeries(curve: SweepCurve, isBestOne: boolean, chosen: Chosen, palette: Palette): object {
  const picked = chosen?.has(curve.trial) ?? false;
  const dim = chosen !== null && !picked;
  const colour = isBestOne ? palette.good : picked ? palette.accent : palette.others;
  return {
    type: "line",
    id: `curve ${curve.trial}`,
    name: String(curve.trial),
    data: curve.points,
    showSymbol: curve.points.length === 1,
    symbol: "circle",
    symbolSize: 4,
    triggerLineEvent: true,
    cursor: "pointer",
    z: isBestOne ? 4 : picked ? 3 : 2,
    lineStyle: {
      color: colour,
      width: isBestOne ? 2.5 : picked ? 1.5 : 1,
      opacity: isBestOne ? 1 : dim ? DIM : picked ? 0.9 : 0.45,
      type: curve.state === "stopped" ? "dashed" : "solid",
    },
    itemStyle: { color: colour },
    emphasis: { lineStyle: { width: isBestOne ? 2.5 : 1.5 } },
  };
}

function stepTip(points: { seriesName: string; value: [number, number] }[], best: number | undefined): HTMLElement {
  const found = summaryOf(points.map((point) => point.value[1]));
  const own = points.find((point) => point.seriesName === String(best));
  return tip(`step ${number(points[0]?.value[0] ?? 0)}`, [
    ["trials", String(points.length)],
    ["lowest", found ? number(found.low) : ""],
    ["median", found ? number(found.middle) : ""],
    ["highest", found ? number(found.high) : ""],
    [`trial ${best ?? ""}, the best`, own ? number(own.value[1]) : ""],
  ]);
}
