import { render } from "preact";

import { watchTheme } from "../theme";
import { LabApp } from "./lab";

const root = document.getElementById("page");
if (root) {
  watchTheme();
  render(<LabApp />, root);
}
