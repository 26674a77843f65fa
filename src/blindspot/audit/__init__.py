"""Does a looped language model have the blind spot? Anyone's model, from four functions of it."""

from blindspot.audit.examine import audit
from blindspot.audit.looped import Looped
from blindspot.audit.observe import Settings

__all__ = ["Looped", "Settings", "audit"]
