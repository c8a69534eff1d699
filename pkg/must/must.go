// Package must ends tests whose steps fail that they do not test.
package must

// TB is what the package needs of a test: *testing.T, *testing.B and *rapid.T have it.
type TB interface {
	Helper()
	Fatal(args ...any)
}

// Succeed ends the test when err is an error, with its text.
func Succeed(t TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Get returns what a function returned together with an error, and ends the test when there
// is an error, with its text:
//
//	file := must.Get(os.Open(path))(t)
func Get[T any](value T, err error) func(t TB) T {
	return func(t TB) T {
		t.Helper()
		Succeed(t, err)
		return value
	}
}
