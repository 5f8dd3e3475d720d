"""How a file is written: a CSV file's separator, character set and signs; a workbook's sheet."""

from __future__ import annotations

from dataclasses import dataclass

from bdpvi._ground import validate
from bdpvi.datasets.types import check_date_format, check_signs

CHARSETS = {"utf-8": "utf-8-sig", "utf-16": "utf-16", "latin-1": "latin-1", "cp1252": "cp1252"}


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """How a CSV file is written, and which sheet of a workbook is read. All of it is public.

    Attributes:
        separator: the character between the values; a tab may be written ``"tab"``. A file
            ``.tsv`` whose header has tabs has them without being told.
        multiline: whether quoted values may span several lines. One line can then join others to
            itself, so a guarantee is about records as delimited by the quotes; line breaks in
            values become spaces.
        charset: utf-8, utf-16, latin-1 or cp1252. A file of utf-16 is read as a whole; a byte that
            it lacks moves all that follows, so only of the others is each line read by itself.
        decimal: the decimal sign of numbers, ``.`` or ``,``.
        thousands: the sign between groups of three digits, ``""`` for none.
        date_format: how dates are written in columns whose declared kind is date, such as
            ``%d.%m.%Y``; "" for year, month, day.
        sheet: the sheet of an Excel workbook; "" for its only one.

    Raises:
        ValueError: naming the field at fault.

    >>> FileFormat(separator=";", decimal=",").differences
    {'separator': ';', 'decimal': ','}
    """

    separator: str = ","
    multiline: bool = False
    charset: str = "utf-8"
    decimal: str = "."
    thousands: str = ""
    date_format: str = ""
    sheet: str = ""

    def __post_init__(self) -> None:
        validate.choice("charset", self.charset, CHARSETS)
        check_signs(self.decimal, self.thousands)
        check_date_format(self.date_format)

    @property
    def differences(self) -> dict[str, str]:
        """What differs from the usual format, by name, but for ``multiline`` and ``sheet``."""
        names = ("separator", "charset", "decimal", "thousands", "date_format")
        usual = {name: getattr(FileFormat, name) for name in names}
        return {n: getattr(self, n) for n in names if getattr(self, n) != usual[n]}

    @property
    def signs(self) -> tuple[str, str, str]:
        """Decimal sign, thousands sign and date format."""
        return self.decimal, self.thousands, self.date_format

    @property
    def plain(self) -> bool:
        """Whether numbers are written as Python writes them."""
        return self.signs[:2] == (".", "")
