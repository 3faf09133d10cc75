/** A chart in a box of a fixed height, so that nothing moves when the library arrives. */

import type { EChartsType } from "echarts/core";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import type { Option } from "../charts/base";
import { type Palette, readPalette } from "../charts/palette";
import { dark } from "../theme";

export interface ChartProps {
  /** Makes the options from the colours; called again when the theme or `version` changes. */
  build: (palette: Palette, width: number) => Option;
  version: unknown;
  height: number;
  label: string;
  /** Called once with the chart, for events. */
  ready?: (chart: EChartsType) => void;
}

export function Chart({ build, version, height, label, ready }: ChartProps): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const chart = useRef<EChartsType | null>(null);
  const [width, setWidth] = useState(0);
  const [failed, setFailed] = useState(false);

  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    let closed = false;
    const observer = new ResizeObserver(() => {
      chart.current?.resize();
      setWidth(element.clientWidth);
    });
    import("../charts/echarts").then(
      ({ init }) => {
        if (closed) return;
        chart.current = init(element, null, { renderer: "canvas" });
        ready?.(chart.current);
        observer.observe(element);
        setWidth(element.clientWidth);
      },
      () => setFailed(true),
    );
    return () => {
      closed = true;
      observer.disconnect();
      chart.current?.dispose();
      chart.current = null;
    };
  }, []);

  useEffect(() => {
    if (!chart.current || !width) return;
    const palette = readPalette();
    chart.current.setOption(build(palette, width), { replaceMerge: ["series", "xAxis", "yAxis", "grid"] });
    // The height may have changed with the data.
    chart.current.resize();
  }, [version, dark.value, width, height]);

  if (failed) return <p class="placeholder">The charts could not be loaded.</p>;
  return <div ref={box} class="chart" style={{ height: `${height}px` }} role="img" aria-label={label} />;
}
