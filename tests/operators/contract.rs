//! Odd rows, odd shapes, errors, and what must not depend on threads or ranks.
