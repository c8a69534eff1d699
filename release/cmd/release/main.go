// Command release makes what a release has beside the images, and pushes it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/spf13/cobra"

	"github.com/carve-csi/carve/release/chart"
	"github.com/carve-csi/carve/release/dist"
	"github.com/carve-csi/carve/release/oci"
	"github.com/carve-csi/carve/release/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	o := dist.Options{Platforms: dist.Platforms}
	var key string
	root := &cobra.Command{
		Use: "release", Short: "Make image indexes, lists of parts, chart, manifests, kubectl-carve, checksums and signature", Args: cobra.NoArgs,
		Long: "Makes what a release has beside the images. Files in archives have the time in SOURCE_DATE_EPOCH, " +
			"in seconds since 1970, or else that of 1980.",
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			o.At = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)
			if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
				seconds, err := strconv.ParseInt(text, 10, 64)
				if err != nil {
					return fmt.Errorf("SOURCE_DATE_EPOCH: got %q, want seconds since 1970: %w", text, err)
				}
				o.At = time.Unix(seconds, 0).UTC()
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if key != "" {
				signer, err := load(key)
				if err != nil {
					return err
				}
				o.Signer = signer
			}
			v, err := dist.Make(cmd.Context(), o)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "made %s in %s\n", v, o.Dir)
			return err
		},
	}
	root.PersistentFlags().StringVar(&o.Root, "root", "..", "the source tree")
	root.PersistentFlags().StringVar(&o.Dir, "dir", "../dist", "folder of the release")
	root.PersistentFlags().StringVar(&key, "key", "", "file with the key to sign with: ECDSA in PEM as PKCS 8, or cosign's, with its password in COSIGN_PASSWORD; empty: nothing is signed")
	root.AddCommand(&cobra.Command{
		Use: "push REGISTRY/NAME", Short: "Push Carve's image under NAME:VERSION, carve-scheduler's under NAME-scheduler:VERSION-k8sMINOR and the chart beside them, sign all there, and print their digests",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errNoRepository
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			pushed, err := push(cmd.Context(), o, args[0], key)
			for _, digest := range pushed {
				_, printErr := fmt.Fprintln(cmd.OutOrStdout(), digest)
				err = errors.Join(err, printErr)
			}
			return err
		},
	})
	root.AddCommand(&cobra.Command{
		Use: "version", Short: "Print the version of the source tree", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := version.Read(o.Root)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), v)
			return err
		},
	})
	root.AddCommand(&cobra.Command{
		Use: "minors", Short: "Print the minor versions of Kubernetes that carve-scheduler is built for", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			minors, err := version.Minors(o.Root)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(minors, " "))
			return err
		},
	})
	return root
}

// load reads the key to sign with.
func load(path string) (signature.Signer, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	return oci.Signer(content, []byte(os.Getenv("COSIGN_PASSWORD")))
}

// errNoRepository is the error of a push without a registry.
var errNoRepository = errors.New("name the image in your registry: make push REGISTRY=registry.internal/storage/carve")

// push pushes the images and the chart, which lies in the folder charts beside them, and signs
// what it has pushed, if there is a key. It pushes nothing of a folder without a whole release.
func push(ctx context.Context, o dist.Options, reference, key string) (pushed []name.Digest, _ error) {
	var signer signature.Signer
	if key != "" {
		var err error
		if signer, err = load(key); err != nil {
			return nil, err
		}
	}
	v, err := version.Read(o.Root)
	if err != nil {
		return nil, err
	}
	images, err := dist.Images(o.Root, v)
	if err != nil {
		return nil, err
	}
	if err := dist.Check(o.Dir, v, images); err != nil {
		return nil, err
	}
	for _, image := range images {
		index, _, err := image.Index(o.Dir)
		if err != nil {
			return pushed, err
		}
		digest, err := oci.Push(ctx, index, image.Reference(reference))
		if err != nil {
			return pushed, err
		}
		pushed = append(pushed, digest)
	}
	archive, err := chart.Push(dist.ChartArchive(o.Dir, v), path.Dir(reference)+"/charts", o.At)
	if err != nil {
		return pushed, err
	}
	pushed = append(pushed, archive)
	if signer == nil {
		return pushed, nil
	}
	for _, digest := range pushed {
		if err := oci.Sign(ctx, digest, signer); err != nil {
			return pushed, err
		}
	}
	return pushed, nil
}
