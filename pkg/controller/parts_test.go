package controller

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carve-csi/carve/pkg/controller/clientfake"
)

func withTaintKey(keys ...string) func(*Options) {
	return func(o *Options) { o.RemoveStartupTaint, o.StartupTaintKeys = true, keys }
}

func TestOptionsThatCannotBeMeantAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Options)
		says   string
	}{
		"a key of a taint that nothing removes": {func(o *Options) { o.StartupTaintKeys = []string{"example.com/a"} }, "without --remove-startup-taint"},
		"a taint's key without a domain":        {withTaintKey("storage"), `--startup-taint-key: "storage" is no key of a taint with a domain`},
		"a taint's key that is none":            {withTaintKey("example.com/a b"), `--startup-taint-key: "example.com/a b" is no key`},
		"a taint's key of Kubernetes' own":      {withTaintKey("node.kubernetes.io/not-ready"), `"node.kubernetes.io/not-ready" is Kubernetes' own`},
		"a taint's keys of autoscalers":         {withTaintKey("readiness.k8s.io/storage", "startup-taint.cluster-autoscaler.kubernetes.io/storage"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Client: clientfake.New(), Namespace: "carve-system",
				Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)}
			test.change(&o)
			_, err := New(o)
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want %q", err, test.says)
			}
		})
	}
}
