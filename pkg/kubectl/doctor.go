package kubectl

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/kubectl/why"
)

// Level is the severity of a check's result.
type Level string

// Levels of checks.
const (
	LevelOK Level = "ok"
	// LevelNote marks a fact about a healthy installation that an administrator may want to know.
	LevelNote  Level = "note"
	LevelWrong Level = "wrong"
)

// Check is the result of one check of doctor.
type Check struct {
	Name string `json:"name"`
	// OK is false for LevelWrong.
	OK    bool  `json:"ok"`
	Level Level `json:"level"`
	// Problem describes the finding, and Next what to do.
	Problem string `json:"problem,omitempty"`
	Next    string `json:"next,omitempty"`
}

func passed(name string) Check { return Check{Name: name, OK: true, Level: LevelOK} }

func note(name, problem, next string) Check {
	return Check{Name: name, OK: true, Level: LevelNote, Problem: problem, Next: next}
}

func wrong(name, problem, next string) Check {
	return Check{Name: name, Level: LevelWrong, Problem: problem, Next: next}
}

func checked(name, problem, next string) Check {
	if problem == "" {
		return passed(name)
	}
	return wrong(name, problem, next)
}

// soon is how long before its end a certificate is reported. The controller renews its own earlier.
const soon = 7 * 24 * time.Hour

func (p *plugin) doctorCommand() *cobra.Command {
	var agents bool
	command := &cobra.Command{
		Use: "doctor", Short: "Check the installation: driver, controllers, agents, nodes, versions, certificates", Args: cobra.NoArgs,
		Long: "Checks the installation, and fails when something is wrong. A note is no failure: of a node that is full or has no volume group yet, for " +
			"example. With --agents it also asks each node agent for its device classes and whether the kernel has what they need; that takes the " +
			"right to run programs in the agents.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.do(cmd.Context(), func(ctx context.Context, client kubernetes.Interface, run run) error {
				checks, err := p.doctor(ctx, client)
				if err != nil {
					return err
				}
				if agents {
					more, err := p.askAgents(ctx, client, run)
					if err != nil {
						return err
					}
					checks = append(checks, more...)
				}
				var rows [][]string
				failed := 0
				for _, c := range checks {
					level := string(c.Level)
					switch c.Level {
					case LevelOK:
						rows = append(rows, []string{level, c.Name})
						continue
					case LevelWrong:
						failed++
						level = strings.ToUpper(level)
					case LevelNote:
					}
					rows = append(rows, []string{level, c.Name + ": " + c.Problem}, []string{"", "next: " + c.Next})
				}
				if err := p.print(cmd.OutOrStdout(), checks, rows); err != nil {
					return err
				}
				if failed > 0 {
					return fmt.Errorf("%d of %d checks: %w", failed, len(checks), ErrUnhealthy)
				}
				return nil
			})
		},
	}
	command.Flags().BoolVar(&agents, "agents", false, "also ask the node agents for their device classes and the kernel's targets")
	return command
}

// doctor runs all checks. It fails only if it cannot read.
func (p *plugin) doctor(ctx context.Context, client kubernetes.Interface) ([]Check, error) {
	s, err := p.read(ctx, client)
	if err != nil {
		return nil, err
	}
	return p.checks(ctx, client, s)
}

func (p *plugin) checks(ctx context.Context, client kubernetes.Interface, s *snapshot) ([]Check, error) {
	var checks []Check
	check := func(name, problem, next string) { checks = append(checks, checked(name, problem, next)) }
	problem := ""
	if _, err := client.StorageV1().CSIDrivers().Get(ctx, names.Driver, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		problem = "there is no CSIDriver " + names.Driver
	} else if err != nil {
		return nil, fmt.Errorf("read the CSIDriver: %w", err)
	}
	check("driver", problem, "install Carve")
	status := s.status()
	controllers, err := p.checkControllers(ctx, client, status)
	if err != nil {
		return nil, err
	}
	agents, err := p.checkAgents(ctx, client)
	if err != nil {
		return nil, err
	}
	checks = append(append(checks, controllers), agents...)
	kubernetesCheck, err := kubernetesVersion(ctx, client)
	if err != nil {
		return nil, err
	}
	checks = append(checks, oneImage(status.Images), p.ownVersion(status.Images), kubernetesCheck)
	problem, err = p.certificate(ctx, client)
	if err != nil {
		return nil, err
	}
	check("certificate authority", problem, "the controller makes and renews it: look at its log")
	problem = ""
	if len(s.classes) == 0 {
		problem = "none has the provisioner " + names.Driver
	}
	check("StorageClasses", problem, "docs/reference/storageclass.md")
	nodes, err := p.checkNodes(ctx, client, s)
	if err != nil {
		return nil, err
	}
	checks = append(checks, nodes...)
	for _, name := range strays(s) {
		check("volume "+name, "its node does not exist", "if neither the node nor its disks will come back, delete the claim; see carve.csi.local/on-node-loss")
	}
	return checks, nil
}

func (p *plugin) checkNodes(ctx context.Context, client kubernetes.Interface, s *snapshot) ([]Check, error) {
	reported, err := classReports(ctx, client)
	if err != nil {
		return nil, err
	}
	var checks []Check
	for i, node := range s.whyNodes() {
		_, wanted := s.agents[node.Name]
		kernel := s.nodes[i].Status.NodeInfo.KernelVersion
		tooOld, _ := before(kernel, oldestKernel)
		var problem string
		next := "kubectl -n " + p.carve + " describe pod " + s.agents[node.Name].Name
		switch {
		case !node.Ready:
			problem, next = "it is not ready", "kubectl describe node "+node.Name
		case !wanted:
			continue // it should have none, or the check of its DaemonSet counts it
		case tooOld:
			problem, next = fmt.Sprintf("its kernel is %s, and Carve needs Linux %s or newer", kernel, oldestKernel), "install a newer kernel on the node; see docs/get-started/install.md"
		case !node.AgentReady:
			problem = "its agent is not ready"
		case !node.Registered:
			problem, next = "its kubelet does not know the driver", "kubectl -n "+p.carve+" logs "+s.agents[node.Name].Name+" -c node"
		default:
			checks = append(checks, s.nodeSpace(node, reported[node.Name]))
			continue
		}
		checks = append(checks, checked("node "+node.Name, problem, next))
	}
	return checks, nil
}

// strays returns the volumes whose nodes are gone.
func strays(s *snapshot) []string {
	there := map[string]bool{}
	for _, node := range s.nodes {
		there[node.Name] = true
	}
	result := map[string]bool{}
	for _, pv := range s.volumes {
		if home := why.Home(&pv); home != "" && !there[home] {
			result[pv.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(result))
}

// certificate describes a problem of the CA that nodes verify the controller with, or returns "".
func (p *plugin) certificate(ctx context.Context, client kubernetes.Interface) (string, error) {
	const name = "carve-uplink-ca"
	published, err := client.CoreV1().ConfigMaps(p.carve).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "there is no ConfigMap " + name + ", for which the node agents wait", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the ConfigMap %s: %w", name, err)
	}
	last, err := lastCertificate([]byte(published.Data["ca.crt"]))
	switch {
	case err != nil:
		return fmt.Sprintf("the ConfigMap %s holds none: %v", name, err), nil
	case p.now().After(last.NotAfter):
		return "it ended on " + last.NotAfter.Format(time.DateOnly), nil
	case last.NotAfter.Sub(p.now()) < soon:
		return "it ends on " + last.NotAfter.Format(time.DateOnly) + ", and was not renewed", nil
	}
	return "", nil
}

func lastCertificate(text []byte) (*x509.Certificate, error) {
	var last *x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if last == nil || certificate.NotAfter.After(last.NotAfter) {
			last = certificate
		}
	}
	if last == nil {
		return nil, errors.New("no certificate")
	}
	return last, nil
}
