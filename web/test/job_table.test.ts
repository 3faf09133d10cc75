import { describe, expect, it } from "vitest";

import { JOB_CELLS, PAST_CELLS, fieldText } from "../src/parts/job_table";
import { HISTORY_TABLE, JOBS_TABLE, type JobColumn, type JobLine } from "../src/types";
import { GIB, job } from "./sample";

function column(field: JobColumn<JobLine>["field"], kind: JobColumn<JobLine>["kind"]): JobColumn<JobLine> {
  return { name: "new", title: "New", field, kind, sort: "", right: false };
}

describe("a table of jobs", () => {
  it("shows a column that has no cell of its own by the unit of its field", () => {
    const line = job("1", { utilisation_percent: 93, devices: ["0", "1"], why: "needs 4 GPUs" });
    expect(fieldText(column("reserved_bytes", "bytes"), { ...line, reserved_bytes: 8 * GIB })).toBe("8.0G");
    expect(fieldText(column("seconds", "seconds"), line)).toBe("00:10");
    expect(fieldText(column("utilisation_percent", "percent"), line)).toBe("93%");
    expect(fieldText(column("devices", "list"), line)).toBe("0,1");
    expect(fieldText(column("why", "text"), line)).toBe("needs 4 GPUs");
    expect(fieldText(column("place", "text"), line)).toBe("–");
  });

  it("has a cell for each column that no single field fills", () => {
    const bare = (columns: readonly JobColumn<never>[], cells: object): string[] =>
      columns.filter(({ name, field }) => field === "" && !(name in cells)).map(({ name }) => name);
    expect(bare(JOBS_TABLE, JOB_CELLS)).toEqual([]);
    expect(bare(HISTORY_TABLE, PAST_CELLS)).toEqual([]);
  });
});
