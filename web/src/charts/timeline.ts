/** The timeline: one lane per GPU, bars stacked by memory, forecast to the right of now, utilisation below each lane. */

import type { CustomSeriesRenderItemAPI, CustomSeriesRenderItemParams, CustomSeriesRenderItemReturn } from "echarts";

import { clock, duration, moment, size } from "../format";
import type { Bar, Lane, Timeline } from "../types";
import { type Option, common, timeAxis, tip } from "./base";
import { type Palette, heat } from "./palette";
import type { Window } from "./window";

export const LANE_HEIGHT = 92;
const STRIP_HEIGHT = 7;
const PADDING = 5;
const TOP = 8;
const BOTTOM = 62;
const LEAST_TEXT_WIDTH = 34;
const LINE_HEIGHT = 15;

export function timelineHeight(lanes: number): number {
  return Math.max(1, lanes) * LANE_HEIGHT + TOP + BOTTOM;
}

/** One drawn piece of a bar: the past of an attempt, or what is expected. */
export interface Piece {
  lane: number;
  from: number;
  until: number;
  bottom: number;
  height: number;
  /** The part of the height that was in use, if measured. */
  used: number | null;
  forecast: boolean;
  /** Where the other piece of the same bar begins: if that one has room for the caption, this one has none. */
  pastFrom: number | null;
  bar: Bar;
}

const FAILED = new Set(["failed", "oom", "timeout", "lost"]);

export function isFailure(bar: Bar): boolean {
  return FAILED.has(bar.state);
}

/** The pieces of all bars. One that runs has a piece until now, and a pale one until its expected end. */
export function pieces(timeline: Timeline): Piece[] {
  const at = moment(timeline.at);
  const until = moment(timeline.until);
  return timeline.lanes.flatMap((lane, index) => [
    ...lane.bars.flatMap((bar) => pastPieces(bar, lane, index, at)),
    ...lane.forecast.map((bar) => piece(bar, lane, index, moment(bar.start), bar.end ? moment(bar.end) : Math.max(until, moment(bar.start)), true)),
  ]);
}

function pastPieces(bar: Bar, lane: Lane, index: number, at: number): Piece[] {
  const start = moment(bar.start);
  if (bar.end) return [piece(bar, lane, index, start, moment(bar.end), false)];
  const running = piece(bar, lane, index, start, Math.max(start, at), false);
  const expected = bar.expected_end ? moment(bar.expected_end) : 0;
  return expected > at ? [running, { ...piece(bar, lane, index, at, expected, true), pastFrom: start }] : [running];
}

function piece(bar: Bar, lane: Lane, index: number, from: number, until: number, forecast: boolean): Piece {
  return { lane: index, from, until, bottom: bar.bottom, height: bar.height, used: forecast ? null : usedPart(bar, lane), forecast, pastFrom: null, bar };
}

/** The part of a bar that is filled; a job may use more than was reserved. */
export function usedPart(bar: Bar, lane: Lane): number | null {
  if (bar.used_bytes === null || !lane.memory_bytes || !bar.height) return null;
  return Math.min(1, bar.used_bytes / lane.memory_bytes / bar.height);
}

export interface Rectangle {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** The place of a piece in its band: memory grows upwards, the strip of utilisation is below. */
export function placeInBand(bottom: number, height: number, bandTop: number, bandHeight: number): { y: number; height: number } {
  const room = bandHeight - 2 * PADDING - STRIP_HEIGHT - 3;
  const base = bandTop + PADDING + room;
  return { y: base - (bottom + height) * room, height: height * room };
}

function band(api: CustomSeriesRenderItemAPI, lane: number): { top: number; height: number } {
  const height = (api.size?.([0, 1]) as number[])[1] ?? LANE_HEIGHT;
  return { top: (api.coord([0, lane])[1] ?? 0) - height / 2, height };
}

function clippedX(params: CustomSeriesRenderItemParams, left: number, right: number): [number, number] | null {
  const area = params.coordSys as unknown as Rectangle;
  const from = Math.max(left, area.x);
  const until = Math.min(right, area.x + area.width);
  return until < area.x || from > area.x + area.width ? null : [from, Math.max(until, from + 1.5)];
}

function drawPiece(one: Piece, colour: string, palette: Palette, params: CustomSeriesRenderItemParams, api: CustomSeriesRenderItemAPI): CustomSeriesRenderItemReturn {
  const place = band(api, one.lane);
  const sides = clippedX(params, api.coord([one.from, one.lane])[0] ?? 0, api.coord([one.until, one.lane])[0] ?? 0);
  if (!sides) return null;
  const [x, right] = sides;
  const { y, height } = placeInBand(one.bottom, one.height, place.top, place.height);
  const width = Math.max(1, right - x - 1);
  const box = { x, y: y + 0.5, width, height: Math.max(2, height - 1) };
  const children: object[] = [
    {
      type: "rect",
      shape: { ...box, r: 2 },
      style: one.forecast
        ? { fill: colour, opacity: 0.13, stroke: "none" }
        : { fill: colour, opacity: 0.3 },
    },
  ];
  if (one.forecast) children.push({ type: "rect", shape: { ...box, r: 2 }, style: { fill: "none", stroke: colour, lineWidth: 1, lineDash: [3, 3], opacity: 0.7 } });
  else children.push(...filled(one, box, colour, palette));
  const captioned = one.pastFrom !== null && x - Math.max((params.coordSys as unknown as Rectangle).x, api.coord([one.pastFrom, one.lane])[0] ?? 0) > LEAST_TEXT_WIDTH;
  if (!captioned && width > LEAST_TEXT_WIDTH && box.height > LINE_HEIGHT - 2) children.push(caption(one, box, palette));
  return { type: "group", children } as CustomSeriesRenderItemReturn;
}

function filled(one: Piece, box: Rectangle, colour: string, palette: Palette): object[] {
  const part = one.used ?? 0;
  const height = box.height * part;
  const shapes: object[] = [];
  if (height >= 1) shapes.push({ type: "rect", shape: { x: box.x, y: box.y + box.height - height, width: box.width, height, r: 2 }, style: { fill: colour, opacity: 0.75 } });
  if (isFailure(one.bar)) {
    const width = Math.min(4, box.width);
    shapes.push({ type: "rect", shape: { x: box.x + box.width - width, y: box.y, width, height: box.height }, style: { fill: palette.bad } });
    shapes.push({ type: "rect", shape: { ...box, r: 2 }, style: { fill: "none", stroke: palette.bad, lineWidth: 1.5 } });
  }
  return shapes;
}

function caption(one: Piece, box: Rectangle, palette: Palette): object {
  const mark = isFailure(one.bar) ? "✗ " : "";
  return {
    type: "text",
    silent: true,
    style: {
      text: `${mark}${one.bar.label} ${one.bar.title}`,
      x: box.x + 5, y: box.y + Math.min(box.height, LINE_HEIGHT + 2) / 2,
      width: box.width - 10, overflow: "truncate", ellipsis: "…",
      fontSize: 11, verticalAlign: "middle", fill: palette.text, stroke: `${palette.surface}a0`, lineWidth: one.forecast ? 0 : 2.5, opacity: one.forecast ? 0.8 : 1,
    },
  };
}

function drawLane(lane: number, palette: Palette, params: CustomSeriesRenderItemParams, api: CustomSeriesRenderItemAPI): CustomSeriesRenderItemReturn {
  const area = params.coordSys as unknown as Rectangle;
  const place = band(api, lane);
  const { y, height } = placeInBand(0, 1, place.top, place.height);
  return {
    type: "group",
    silent: true,
    children: [
      { type: "rect", shape: { x: area.x, y, width: area.width, height }, style: { fill: palette.lane } },
      { type: "line", shape: { x1: area.x, x2: area.x + area.width, y1: y, y2: y }, style: { stroke: palette.faint, lineWidth: 1, lineDash: [2, 3], opacity: 0.6 } },
    ],
  } as CustomSeriesRenderItemReturn;
}

function drawHeat(lane: number, from: number, until: number, part: number, palette: Palette, params: CustomSeriesRenderItemParams, api: CustomSeriesRenderItemAPI): CustomSeriesRenderItemReturn {
  const place = band(api, lane);
  const sides = clippedX(params, api.coord([from, lane])[0] ?? 0, api.coord([until, lane])[0] ?? 0);
  if (!sides) return null;
  const y = place.top + place.height - PADDING - STRIP_HEIGHT;
  return { type: "rect", shape: { x: sides[0], y, width: sides[1] - sides[0] + 0.3, height: STRIP_HEIGHT }, style: { fill: heat(part, palette.heat) } } as CustomSeriesRenderItemReturn;
}

/** Runs of known values as [time, part of the GPU's memory]. */
export function memoryRuns(values: (number | null)[], total: number, start: number, stepMs: number): [number, number][][] {
  const runs: [number, number][][] = [];
  let run: [number, number][] = [];
  values.forEach((value, index) => {
    if (value === null) {
      if (run.length) runs.push(run);
      run = [];
      return;
    }
    const part = Math.min(1, value / total);
    run.push([start + index * stepMs, part], [start + (index + 1) * stepMs, part]);
  });
  if (run.length) runs.push(run);
  return runs;
}

function drawRun(lane: number, run: [number, number][], palette: Palette, params: CustomSeriesRenderItemParams, api: CustomSeriesRenderItemAPI): CustomSeriesRenderItemReturn {
  const area = params.coordSys as unknown as Rectangle;
  const place = band(api, lane);
  const points = run.map(([at, part]) => [api.coord([at, lane])[0] ?? 0, placeInBand(part, 0, place.top, place.height).y]);
  const inside = points.filter(([x = 0]) => x >= area.x - 1 && x <= area.x + area.width + 1);
  if (inside.length < 2) return null;
  return { type: "polyline", silent: true, shape: { points: inside }, style: { fill: "none", stroke: palette.text, lineWidth: 1.2, opacity: 0.75 } } as CustomSeriesRenderItemReturn;
}

function barTip(bar: Bar, lane: Lane, forecast: boolean, at: number): HTMLElement {
  const start = moment(bar.start);
  const end = bar.end ? moment(bar.end) : null;
  const reserved = bar.reserved_bytes === null ? "whole GPU" : size(bar.reserved_bytes);
  return tip(`${bar.label} ${bar.title}`, [
    ["state", forecast && bar.state === "queued" ? "expected" : bar.state],
    ["group", bar.group],
    ["GPU", lane.label],
    ["start", `${forecast && bar.state === "queued" ? "~" : ""}${clock(start, at, true)}`],
    ["end", end ? clock(end, at, true) : bar.expected_end ? `~${clock(moment(bar.expected_end), at)}` : ""],
    ["time", bar.state === "queued" ? "" : duration(((end ?? at) - start) / 1000)],
    ["reserved", reserved],
    ["peak", bar.used_bytes === null ? "" : size(bar.used_bytes)],
    ["attempt", bar.attempt > 1 ? String(bar.attempt) : ""],
  ]);
}

const LEAST_PAST_MS = 5 * 60_000;

/** What the axis shows: the period, without the time before anything is known. */
export function edgesOf(timeline: Timeline): Window {
  const at = moment(timeline.at);
  const step = timeline.samples_step_seconds * 1000;
  const starts = timeline.lanes.flatMap((lane) => {
    const place = lane.samples.utilisation_percent.findIndex((value) => value !== null);
    const sampled = place < 0 ? [] : [moment(timeline.samples_start) + place * step];
    return [...sampled, ...lane.bars.map((bar) => moment(bar.start))];
  });
  const known = Math.min(at - LEAST_PAST_MS, ...starts);
  return { from: Math.max(moment(timeline.since), known), until: Math.max(moment(timeline.until), at + (at - known) * 0.03) };
}

export interface TimelineOptions {
  timeline: Timeline;
  palette: Palette;
  colour: (bar: Bar) => string;
  narrow: boolean;
  window: Window | null;
}

export function timelineOption({ timeline, palette, colour, narrow, window }: TimelineOptions): Option {
  const { lanes } = timeline;
  const at = moment(timeline.at);
  const drawn = pieces(timeline);
  const edges = edgesOf(timeline);
  const start = moment(timeline.samples_start);
  const step = timeline.samples_step_seconds * 1000;
  const cells = lanes.flatMap((lane, index) =>
    lane.samples.utilisation_percent.flatMap((value, place) => (value === null ? [] : [[index, start + place * step, Math.min(at, start + (place + 1) * step), value / 100]])),
  );
  const runs = lanes.flatMap((lane, index) => (lane.memory_bytes ? memoryRuns(lane.samples.used_bytes, lane.memory_bytes, start, step).map((run) => ({ lane: index, run })) : []));
  const left = narrow ? 34 : 88;
  return {
    ...common(palette),
    grid: { left, right: narrow ? 8 : 14, top: TOP, bottom: BOTTOM },
    xAxis: timeAxis(palette, { min: edges.from, max: edges.until }),
    yAxis: {
      type: "category", inverse: true, data: lanes.map((lane) => lane.id), axisLine: { show: false }, axisTick: { show: false },
      axisLabel: {
        color: palette.text, fontSize: 12, margin: narrow ? 6 : 10,
        formatter: (_: string, index: number) => {
          const lane = lanes[index];
          return lane ? (narrow ? lane.label : `{name|GPU ${lane.label}}\n{model|${lane.model}}\n{model|${lane.memory_bytes ? `of ${size(lane.memory_bytes)}` : ""}}`) : "";
        },
        rich: { name: { fontWeight: 600, fontSize: 12, lineHeight: 16 }, model: { color: palette.faint, fontSize: 10, lineHeight: 14 } },
        width: left - 10, overflow: "truncate",
      },
    },
    dataZoom: [
      { type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseMove: true, preventDefaultMouseMove: false, ...limits(window) },
      {
        type: "slider", filterMode: "none", height: 20, bottom: 8, showDetail: false, brushSelect: false, ...limits(window),
        borderColor: palette.line, backgroundColor: "transparent", fillerColor: `${palette.accent}22`,
        handleStyle: { color: palette.surface, borderColor: palette.accent }, moveHandleStyle: { color: palette.accent, opacity: 0.5 },
        dataBackground: { lineStyle: { opacity: 0 }, areaStyle: { opacity: 0 } },
        selectedDataBackground: { lineStyle: { opacity: 0 }, areaStyle: { opacity: 0 } },
      },
    ],
    series: [
      {
        type: "custom", silent: true, clip: true, z: 1, data: lanes.map((_, index) => [at, index]),
        renderItem: (params: CustomSeriesRenderItemParams, api: CustomSeriesRenderItemAPI) => drawLane(params.dataIndex, palette, params, api),
      },
      {
        type: "custom", clip: true, z: 2, data: cells, encode: { x: [1, 2], y: 0 },
        renderItem: (params: CustomSeriesRenderItemParams, api: CustomSeriesRenderItemAPI) =>
          drawHeat(Number(api.value(0)), Number(api.value(1)), Number(api.value(2)), Number(api.value(3)), palette, params, api),
        tooltip: {
          formatter: ({ value }: { value: number[] }) =>
            tip(`GPU ${lanes[value[0] ?? 0]?.label ?? ""}`, [["utilisation", `${Math.round((value[3] ?? 0) * 100)}%`], ["time", clock(value[1] ?? 0, at)]]),
        },
      },
      {
        type: "custom", clip: true, z: 3, id: "bars", data: drawn.map((one) => [one.lane, one.from, one.until]), encode: { x: [1, 2], y: 0 }, cursor: "pointer",
        renderItem: (params: CustomSeriesRenderItemParams, api: CustomSeriesRenderItemAPI) => {
          const one = drawn[params.dataIndex];
          return one ? drawPiece(one, colour(one.bar), palette, params, api) : null;
        },
        tooltip: {
          formatter: ({ dataIndex }: { dataIndex: number }) => {
            const one = drawn[dataIndex];
            const lane = one && lanes[one.lane];
            return one && lane ? barTip(one.bar, lane, one.forecast, at) : "";
          },
        },
        markLine: {
          silent: true, symbol: "none", data: [{ xAxis: at }], lineStyle: { color: palette.now, width: 1.5, type: "solid" },
          label: { formatter: "now", position: "end", distance: 2, color: palette.now, fontSize: 10, show: false },
        },
      },
      {
        type: "custom", silent: true, clip: true, z: 4, data: runs.map(({ lane, run }) => [lane, run[0]?.[0] ?? 0]), encode: { x: 1, y: 0 },
        renderItem: (params: CustomSeriesRenderItemParams, api: CustomSeriesRenderItemAPI) => {
          const one = runs[params.dataIndex];
          return one ? drawRun(one.lane, one.run, palette, params, api) : null;
        },
      },
    ],
  };
}

function limits(window: Window | null): Option {
  return window ? { startValue: window.from, endValue: window.until } : { start: 0, end: 100 };
}
