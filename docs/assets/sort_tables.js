// A click on a column's head sorts the table by it, numbers first; another click turns the order around.
document.addEventListener("click", (event) => {
  const head = event.target.closest("article th");
  if (!head) return;
  const body = head.closest("table").tBodies[0];
  const column = head.cellIndex;
  const down = head.dataset.order === "up";
  head.dataset.order = down ? "down" : "up";
  const text = (row) => row.cells[column].innerText;
  const number = (row) => parseFloat(text(row).replace(/[,~≥<>]/g, "").replace("−", "-"));
  const rows = [...body.rows].sort((a, b) =>
    isNaN(number(a)) - isNaN(number(b)) || number(a) - number(b)
      || text(a).localeCompare(text(b), undefined, { numeric: true })
  );
  body.append(...(down ? rows.reverse() : rows));
});
