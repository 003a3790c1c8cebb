// Package trace: see docs/design.md.
package trace
