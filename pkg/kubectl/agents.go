package kubectl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// target is the device-mapper target that a type of device class needs, and its kernel module.
type target struct{ name, module string }

var targets = map[string]target{
	"linear": {"linear", "dm_mod"}, "striped": {"striped", "dm_mod"}, "thin": {"thin-pool", "dm_thin_pool"},
	"raid1": {"raid", "dm_raid"}, "raid10": {"raid", "dm_raid"}, "raid5": {"raid", "dm_raid"}, "raid6": {"raid", "dm_raid"},
}

// askAgents asks each node's agent for its classes and their conditions, and for the targets of its
// kernel. An agent that does not answer fails its check.
func (p *plugin) askAgents(ctx context.Context, client kubernetes.Interface, run run) ([]Check, error) {
	s, err := p.read(ctx, client)
	if err != nil {
		return nil, err
	}
	var checks []Check
	for _, a := range ask(ctx, s, func(ctx context.Context, node, pod string) ([]Check, error) { return askAgent(ctx, run, s, node, pod) }) {
		switch {
		case errors.Is(a.err, ErrNotAsked):
			a.value = []Check{wrong("agent of "+a.node, a.err.Error(), "kubectl -n "+p.carve+" describe pod "+a.pod)}
		case a.err != nil:
			a.value = []Check{wrong("agent of "+a.node, a.err.Error(), "kubectl -n "+p.carve+" logs "+a.pod+" -c lvmd")}
		}
		checks = append(checks, a.value...)
	}
	return checks, nil
}

func askAgent(ctx context.Context, run run, s *snapshot, node, pod string) ([]Check, error) {
	output, err := run(ctx, pod, "lvmd", "carve-lvmd", "classes", "--json")
	if err != nil {
		return nil, err
	}
	// dmsetup prints a line for each target: NAME vVERSION.
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
		checks = append(checks, s.classCheck(node, class, loaded))
	}
	return checks, nil
}

// classCheck checks a node's device class. loaded lists the targets that its kernel has loaded.
func (s *snapshot) classCheck(node string, class *lvmdv1.DeviceClass, loaded string) Check {
	name := "class " + class.GetName() + " of " + node
	if len(class.GetConditions()) > 0 {
		return s.conditionsCheck(name, node, class.GetConditions())
	}
	// lvmd makes the kernel load the target when it creates the first volume or the pool.
	if needs, known := targets[class.GetType()]; known && !slices.ContainsFunc(slices.Collect(strings.Lines(loaded)), func(l string) bool {
		name, _, _ := strings.Cut(l, " ")
		return name == needs.name
	}) {
		return note(name, fmt.Sprintf("the kernel has not loaded %s, which has the target %s; it does when the first volume is made, if the node has the module", needs.module, needs.name),
			"where it cannot: modprobe "+needs.module+" on the node, and list it in /etc/modules-load.d")
	}
	if total := class.GetTotalBytes(); total > 0 && class.GetMaximumVolumeSizeBytes() == 0 {
		return note(name, fmt.Sprintf("it is full: %s of %s are used", size(total-class.GetAvailableBytes()), size(total)),
			"kubectl carve capacity; kubectl carve volumes --node "+node)
	}
	return passed(name)
}

// conditionsCheck checks a class's conditions. A volume group that is still to be created and
// copies that are being synchronised are no faults.
func (s *snapshot) conditionsCheck(name, node string, found []*lvmdv1.Condition) Check {
	var problems []string
	next, fault := nextOfCondition, false
	for _, c := range found {
		problem := c.GetType() + ": " + c.GetMessage()
		switch c.GetType() {
		case conditions.OutOfSync:
		case conditions.VolumeGroupMissing:
			if s.lost(node, c.GetMessage()) {
				problem, fault = problem+lostGroup, true
				break
			}
			next = nextOfGroup
		default:
			fault = true
		}
		problems = append(problems, problem)
	}
	if fault {
		return wrong(name, strings.Join(problems, "; "), nextOfCondition)
	}
	return note(name, strings.Join(problems, "; "), next)
}
