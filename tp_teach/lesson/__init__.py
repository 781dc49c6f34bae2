"""What only a notebook needs: exercises that check themselves, and running the series anew."""

from tp_teach.lesson.check import check

__all__ = ["check"]
