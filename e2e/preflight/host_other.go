//go:build !linux

package preflight

import "runtime"

func look(Needs) (host, error) {
	return host{system: runtime.GOOS, processor: runtime.GOARCH}, nil
}
