package controlplane

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/e2e/kube"
)

// The scheduler's settings for an extender.
const (
	schedulerSettings = "scheduler.yaml"
	extenderAuthority = "extender-ca"
	extenderPair      = "scheduler-extender-client"
)

// schedulerArguments are those of a scheduler with a configuration file, if there is
// one.
func (c *ControlPlane) schedulerArguments() []string {
	arguments := c.clientArguments(schedulerConfig)
	settings := filepath.Join(c.dir, schedulerSettings)
	if _, err := os.Stat(settings); err == nil {
		arguments = append(arguments, "--config="+settings)
	}
	return arguments
}

// ExtenderSecret returns what a scheduler extender called host serves with: a
// certificate, its key, and the authority that UseExtender's scheduler is known by;
// tls.crt, tls.key and ca.crt.
func (c *ControlPlane) ExtenderSecret(host string) (map[string][]byte, error) {
	issuer, err := loadAuthority(filepath.Join(c.dir, pkiFolder), extenderAuthority)
	if err != nil {
		return nil, err
	}
	serving, err := issuer.issue(identity{name: host, hosts: []string{host}})
	if err != nil {
		return nil, err
	}
	return map[string][]byte{"tls.crt": serving.certificate, "tls.key": serving.key, "ca.crt": issuer.certificate}, nil
}

// UseExtender restarts the scheduler with a configuration file that has one
// extender, where it is at url and the other files are where this control plane has
// them.
func (c *ControlPlane) UseExtender(ctx context.Context, configuration []byte, url string) error {
	pki := filepath.Join(c.dir, pkiFolder)
	issuer, err := loadAuthority(pki, extenderAuthority)
	if err != nil {
		return err
	}
	if _, err := loadOrMake(pki, extenderPair, func() (pair, error) {
		return issuer.issue(identity{name: "system:kube-scheduler"})
	}); err != nil {
		return err
	}
	var settings struct {
		APIVersion       string           `json:"apiVersion"`
		Kind             string           `json:"kind"`
		ClientConnection map[string]any   `json:"clientConnection"`
		LeaderElection   map[string]any   `json:"leaderElection"`
		Extenders        []map[string]any `json:"extenders"`
	}
	if err := yaml.UnmarshalStrict(configuration, &settings); err != nil {
		return fmt.Errorf("read the scheduler's configuration: %w", err)
	}
	if len(settings.Extenders) != 1 {
		return fmt.Errorf("the scheduler's configuration has %d extenders, want one", len(settings.Extenders))
	}
	tls, ok := settings.Extenders[0]["tlsConfig"].(map[string]any)
	if !ok {
		return fmt.Errorf("the scheduler's extender has no tlsConfig")
	}
	settings.Extenders[0]["urlPrefix"] = url
	tls["caFile"], _ = pairFiles(pki, extenderAuthority)
	tls["certFile"], tls["keyFile"] = pairFiles(pki, extenderPair)
	settings.ClientConnection = map[string]any{"kubeconfig": filepath.Join(c.dir, schedulerConfig)}
	if c.clientRate > 0 { // the options of the command line have no effect beside a file
		settings.ClientConnection["qps"], settings.ClientConnection["burst"] = c.clientRate, c.clientRate
	}
	settings.LeaderElection = map[string]any{"leaderElect": false}
	content, err := yaml.Marshal(settings)
	if err != nil {
		return fmt.Errorf("write the scheduler's configuration: %w", err)
	}
	if err := writeFile(filepath.Join(c.dir, schedulerSettings), content); err != nil {
		return err
	}
	return c.restartScheduler(ctx)
}

// UseNoExtender restarts the scheduler without a configuration file.
func (c *ControlPlane) UseNoExtender(ctx context.Context) error {
	if err := os.RemoveAll(filepath.Join(c.dir, schedulerSettings)); err != nil {
		return fmt.Errorf("remove the scheduler's configuration: %w", err)
	}
	return c.restartScheduler(ctx)
}

func (c *ControlPlane) restartScheduler(ctx context.Context) error {
	if err := c.StopComponent(ctx, kube.Scheduler); err != nil {
		return err
	}
	return c.StartComponent(ctx, kube.Scheduler)
}
