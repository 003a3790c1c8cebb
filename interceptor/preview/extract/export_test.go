package extract

// ReadInput is for tests of package extract_test.
var ReadInput = readInput
