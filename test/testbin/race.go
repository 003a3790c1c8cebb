//go:build race

package testbin

// race tells whether the test has the race detector.
const race = true
