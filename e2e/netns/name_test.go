package netns

import (
	"errors"
	"io/fs"
	"net/netip"
	"testing"
)

func TestNamesThatAreNoDNSLabelsAreRefused(t *testing.T) {
	for _, name := range []string{"", "../etc", "a/b", "A", "-a", "a-", "a b"} {
		if _, err := Open(name); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Open(%q): want an error about the name, got %v", name, err)
		}
		if _, err := Create(name, DefaultGateway); err == nil {
			t.Errorf("Create(%q): want an error about the name, got none", name)
		}
	}
}

func TestOpeningANamespaceThatIsNotThereSaysSo(t *testing.T) {
	if _, err := Open("carve-no-such-namespace"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open: want %v, got %v", fs.ErrNotExist, err)
	}
}

func TestGatewaysThatAreNoIPv4AddressesAreRefused(t *testing.T) {
	for _, gateway := range []netip.Prefix{{}, netip.MustParsePrefix("fd00::1/64")} {
		if _, err := Create("carve-test-gateway", gateway); err == nil {
			t.Errorf("Create with gateway %s: want an error, got none", gateway)
		}
	}
}

func TestDialWantsAnIPAddress(t *testing.T) {
	_, err := Namespace{name: "carve-no-such-namespace"}.DialContext(t.Context(), "tcp", "localhost:1")
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("DialContext: want an error about the address, got %v", err)
	}
}
