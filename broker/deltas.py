"""New text of a request that is being generated, on its way from a worker to whoever reads along."""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A piece of the text of the request `index`; it begins behind the first `offset` characters of the text.

    By the offset it does no harm when a piece comes twice, late, or from two workers. On the wire it is an array, as
    there are many: new fields go to the end.
    """

    index: Count
    offset: Count
    text: str

    @property
    def end(self) -> int:
        """How long the text is with this piece, in characters."""
        return self.offset + len(self.text)

    def followed_by(self, later: "TextDelta") -> "TextDelta":
        """Both as one, where `later` begins right behind this piece."""
        assert (later.index, later.offset) == (self.index, self.end), "not the piece behind this one"
        return TextDelta(index=self.index, offset=self.offset, text=self.text + later.text)
