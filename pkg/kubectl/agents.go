package kubectl

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"k8s.io/client-go/kubernetes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// target is what the kernel's device mapper needs for a type of device class, and the module
// that has it.
type target struct{ name, module string }

// targets are those of each type of device class.
var targets = map[string]target{
	"linear": {"linear", "dm_mod"}, "striped": {"striped", "dm_mod"}, "thin": {"thin-pool", "dm_thin_pool"},
	"raid1": {"raid", "dm_raid"}, "raid10": {"raid", "dm_raid"}, "raid5": {"raid", "dm_raid"}, "raid6": {"raid", "dm_raid"},
}

// askAgents asks each node's agent for its classes, what is wrong with them, and whether the
// kernel has what they need. An agent that does not answer is a check that failed.
func (p *plugin) askAgents(ctx context.Context, client kubernetes.Interface, run run) ([]Check, error) {
	s, err := p.read(ctx, client)
	if err != nil {
		return nil, err
	}
	var checks []Check
	for _, node := range slices.Sorted(maps.Keys(s.agents)) {
		pod := s.agents[node].Name
		found, err := p.askAgent(ctx, run, node, pod)
		if err != nil {
			found = []Check{{Name: "agent of " + node, Problem: err.Error(), Next: "kubectl -n " + p.carve + " logs " + pod + " -c lvmd"}}
		}
		checks = append(checks, found...)
	}
	return checks, nil
}

func (p *plugin) askAgent(ctx context.Context, run run, node, pod string) ([]Check, error) {
	output, err := run(ctx, pod, "lvmd", "carve-lvmd", "classes", "--json")
	if err != nil {
		return nil, err
	}
	// A line for each: NAME vVERSION.
	loaded, err := run(ctx, pod, "lvmd", "dmsetup", "targets")
	if err != nil {
		return nil, err
	}
	var checks []Check
	for line := range strings.Lines(output) {
		class := &lvmdv1.DeviceClass{}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(line), class); err != nil {
			return nil, fmt.Errorf("parse %.80q: %w", line, err)
		}
		check := Check{Name: "class " + class.GetName() + " of " + node, OK: true}
		if needs, known := targets[class.GetType()]; known && !slices.ContainsFunc(slices.Collect(strings.Lines(loaded)), func(l string) bool {
			name, _, _ := strings.Cut(l, " ")
			return name == needs.name
		}) {
			check.OK, check.Problem = false, fmt.Sprintf("the kernel has not loaded %s, which has the target %s", needs.module, needs.name)
			check.Next = "modprobe " + needs.module + " on the node, and list it in /etc/modules-load.d"
		}
		if conditions := class.GetConditions(); len(conditions) > 0 {
			check.OK, check.Problem, check.Next = false, conditions[0].GetType()+": "+conditions[0].GetMessage(), "docs/reference/conditions.md"
		}
		checks = append(checks, check)
	}
	return checks, nil
}
