// A click on a column's head sorts the table by it; another click turns the order around.
document.addEventListener("click", (event) => {
  const head = event.target.closest("article th");
  if (!head) return;
  const body = head.closest("table").tBodies[0];
  const column = head.cellIndex;
  const down = head.dataset.order === "up";
  head.dataset.order = down ? "down" : "up";
  const rows = [...body.rows].sort((a, b) =>
    a.cells[column].innerText.localeCompare(b.cells[column].innerText, undefined, { numeric: true })
  );
  body.append(...(down ? rows.reverse() : rows));
});
