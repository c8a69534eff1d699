package kubectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/api/names"
)

// timeout limits a whole command. support-bundle has its own limit, as it reads the logs of all
// agents.
const (
	timeout       = 2 * time.Minute
	bundleTimeout = 10 * time.Minute
)

// ErrUnhealthy means that doctor found a fault.
var ErrUnhealthy = errors.New("something is not as it should be")

// run runs a program in a container of a Pod in Carve's namespace, and returns its output.
type run func(ctx context.Context, pod, container string, argv ...string) (string, error)

type plugin struct {
	version string
	// carve is Carve's namespace, namespace the caller's.
	carve, namespace string
	output           string
	now              func() time.Time
	// connect is called once per command.
	connect func() (kubernetes.Interface, run, error)
}

// NewCommand returns the command `kubectl carve` of the given version.
func NewCommand(version string) *cobra.Command {
	p := &plugin{version: version, now: time.Now}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	overrides := &clientcmd.ConfigOverrides{}
	root := p.command()
	flags := root.PersistentFlags()
	flags.StringVar(&rules.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "kubeconfig file to use")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	clientcmd.BindOverrideFlags(overrides, flags, names)
	p.connect = func() (kubernetes.Interface, run, error) {
		loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
		config, err := loader.ClientConfig()
		if err != nil {
			return nil, nil, fmt.Errorf("find the API server: %w", err)
		}
		if p.namespace, _, err = loader.Namespace(); err != nil {
			return nil, nil, fmt.Errorf("find the namespace: %w", err)
		}
		config.UserAgent = "kubectl-carve/" + version
		config.QPS, config.Burst = 50, 100
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, nil, fmt.Errorf("make a client for the API server: %w", err)
		}
		return client, p.runner(rest.CopyConfig(config), client), nil
	}
	return root
}

// command returns the command without the flags that select a cluster.
func (p *plugin) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "kubectl-carve",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl carve"},
		Short:         "Look at Carve's volumes, and why a Pod waits for one",
		Version:       p.version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&p.carve, "carve-namespace", names.Namespace, "namespace that Carve is installed in")
	flags.StringVarP(&p.output, "output", "o", "", "json or yaml; empty: a table for people")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(p.statusCommand(), p.capacityCommand(), p.volumesCommand(), p.orphansCommand(), p.adoptCommand(), p.whyCommand(), p.doctorCommand(), p.bundleCommand())
	return root
}

func (p *plugin) do(ctx context.Context, f func(context.Context, kubernetes.Interface, run) error) error {
	return p.doWithin(ctx, timeout, f)
}

func (p *plugin) doWithin(ctx context.Context, timeout time.Duration, f func(context.Context, kubernetes.Interface, run) error) error {
	switch p.output {
	case "", "json", "yaml":
	default:
		return fmt.Errorf("--output: got %q, want json or yaml", p.output)
	}
	client, run, err := p.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return f(ctx, client, run)
}

// print writes value as JSON or YAML if requested, or else rows as a table.
func (p *plugin) print(w io.Writer, value any, rows [][]string) error {
	var text []byte
	var err error
	switch p.output {
	case "json":
		text, err = json.MarshalIndent(value, "", "  ")
		text = append(text, '\n')
	case "yaml":
		text, err = yaml.Marshal(value)
	default:
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, row := range rows {
			fmt.Fprintln(table, strings.TrimRight(strings.Join(row, "\t"), "\t"))
		}
		return table.Flush()
	}
	if err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	_, err = w.Write(text)
	return err
}
