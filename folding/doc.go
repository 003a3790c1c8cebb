// Package folding: see docs/design.md.
package folding
