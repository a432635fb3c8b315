"""Tables of plain text."""


def text_table(header, rows, indent=''):
    """Lay out cells in columns: the first column to the left, numbers and the rest to the right.

    Args:
        header (sequence[str]): column titles.
        rows (iterable[sequence]): cells, ``str()`` of which is shown; a row of ``None`` draws a line.
        indent (str): put in front of every line.

    Returns:
        str: lines joined by newlines, none at the end.
    """
    rows = [None if row is None else [str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [header, *filter(None, rows)]) for i in range(len(header))]
    rule = '-' * (sum(widths) + 2 * (len(widths) - 1))

    def line(row):
        if row is None:
            return rule
        first, *rest = zip(row, widths, strict=True)
        return '  '.join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]).rstrip()

    return '\n'.join(indent + line(row) for row in [list(header), None, *rows])
