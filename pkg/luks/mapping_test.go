//go:build !kernel

package luks

import (
	"strings"
	"testing"
)

func TestANameThatNoDeviceCanHaveHasNoMapping(t *testing.T) {
	if _, there, err := New("cryptsetup", Usual).Mapping(strings.Repeat("v", 128)); there || err != nil {
		t.Errorf("there %t, error %v", there, err)
	}
}
