"""Which pictures a report shows: each carries one argument and says what it leaves out."""

from __future__ import annotations

from pth_tracker.model import Audit
from pth_tracker.render.bug_pictures import batches_pictures, factors_pictures, order_pictures, ratio_pictures
from pth_tracker.render.picture import Picture
from pth_tracker.render.score_pictures import pairs_pictures, ranges_pictures, scores_pictures


def pictures(audit: Audit) -> list[Picture]:
    """The pictures of a report on ``audit``, in the order in which they are shown."""
    makers = (
        ratio_pictures,
        order_pictures,
        batches_pictures,
        factors_pictures,
        scores_pictures,
        ranges_pictures,
        pairs_pictures,
    )
    return [picture for make in makers for picture in make(audit)]
