// Package budget: see docs/design.md.
package budget
