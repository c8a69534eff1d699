package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/onsi/ginkgo/v2/types"
)

// Cases are numbers of cases of the suite that ran, by the service that they are of. A
// case that was skipped, because a capability is missing or for another reason, is none.
type Cases struct {
	Identity, Node int
}

// count returns how many cases passed of each class.
func count(report types.Report) map[string]Cases {
	passed := map[string]Cases{}
	for _, spec := range report.SpecReports {
		if spec.LeafNodeType != types.NodeTypeIt || spec.State != types.SpecStatePassed || len(spec.ContainerHierarchyTexts) < 2 {
			continue
		}
		class, service := spec.ContainerHierarchyTexts[0], spec.ContainerHierarchyTexts[1]
		c := passed[class]
		switch {
		case strings.HasPrefix(service, "Identity Service"):
			c.Identity++
		case strings.HasPrefix(service, "Node Service"):
			c.Node++
		}
		passed[class] = c
	}
	return passed
}

// check fails the test where fewer cases ran than are recorded. A number that has grown
// is to be recorded.
func (c Cases) check(t *testing.T, class string, floor Cases) {
	t.Helper()
	t.Logf("%s: ran %+v, recorded are %+v", class, c, floor)
	if c.Identity < floor.Identity || c.Node < floor.Node {
		t.Errorf("%s: ran %+v, want at least %+v", class, c, floor)
	}
}

// What the services advertise. The suite skips the cases of what is missing.
var (
	pluginCapabilities = []string{
		"CONTROLLER_SERVICE", "ONLINE", "VOLUME_ACCESSIBILITY_CONSTRAINTS",
	}
	nodeCapabilities = []string{
		"EXPAND_VOLUME", "GET_STORAGE_HEALTH", "GET_VOLUME_HEALTH", "GET_VOLUME_STATS", "SINGLE_NODE_MULTI_WRITER", "STAGE_UNSTAGE_VOLUME",
	}
)

// checkNode checks what a plugin advertises.
func checkNode(t *testing.T, identity csi.IdentityClient, node csi.NodeClient) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	checkIdentity(ctx, t, identity)
	answer, err := node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	var got []string
	for _, c := range answer.GetCapabilities() {
		got = append(got, c.GetRpc().GetType().String())
	}
	compare(t, "the node service", got, nodeCapabilities, err)
}

func checkIdentity(ctx context.Context, t *testing.T, client csi.IdentityClient) {
	t.Helper()
	answer, err := client.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	var got []string
	for _, c := range answer.GetCapabilities() {
		if c.GetService() != nil {
			got = append(got, c.GetService().GetType().String())
		} else {
			got = append(got, c.GetVolumeExpansion().GetType().String())
		}
	}
	compare(t, "the plugin", got, pluginCapabilities, err)
}

// compare fails the test where something is not advertised, or is not recorded here.
func compare(t *testing.T, who string, got, want []string, err error) {
	t.Helper()
	slices.Sort(got)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s advertises %q, error %v, want %q", who, got, err, want)
	}
}
