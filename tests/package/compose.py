# compose.py - a file of docker compose, looked at without docker: its keys, and that everything it names is there.
# SPDX-License-Identifier: Apache-2.0
#
# usage: compose.py FILE                       prints what is wrong; exit status 1 if anything is
#        compose.py --health SERVICE FILE      prints the shell command that says whether the service is well
import os
import re
import sys

import yaml

TOP = {"name", "services", "networks", "volumes", "secrets"}
SERVICE = {"build", "image", "command", "user", "environment", "depends_on", "secrets", "networks", "network_mode", "volumes",
           "tmpfs", "healthcheck", "deploy", "cap_drop", "security_opt", "read_only"}
HEALTH = {"test", "interval", "timeout", "retries"}
FOREIGN = {"redis", "mariadb", "debian"}  # without a host: whose registry it is, is for the user to say

faults = []


def complain(where, what):
    faults.append(f"{where}: {what}")


def known(where, keys, allowed):
    for key in sorted(set(keys) - allowed):
        complain(where, f"unknown key {key}")


def image_is_plain(where, image):
    if not re.fullmatch("(%s):[0-9.]+" % "|".join(FOREIGN), image):
        complain(where, f"the image {image} is none of {sorted(FOREIGN)} with a version")


def look_at_build(where, build, base):
    known(where, build, {"context", "dockerfile"})
    context = os.path.join(base, build["context"])
    with open(os.path.join(context, build["dockerfile"])) as file:
        lines = file.read().replace("\\\n", " ").splitlines()
    if not lines or not any(line.startswith("FROM ") for line in lines):
        complain(where, "the Dockerfile has no FROM")
    for line in lines:
        word, *rest = line.split() or [""]
        if word == "FROM":
            image_is_plain(where, rest[0])
        elif word == "COPY":
            for name in rest[:-1]:
                if not os.path.exists(os.path.join(context, name)):
                    complain(where, f"COPY: there is no {name}")
        elif word and word not in ("RUN", "USER") and not word.startswith("#"):
            complain(where, f"unknown instruction {word}")


def look_at_mounts(where, mounts, base, top, inside):
    for mount in mounts:
        source, target, *mode = mount.split(":")
        if source.startswith("."):
            if not os.path.isfile(os.path.join(base, source)):
                complain(where, f"there is no {source}")
            if mode != ["ro"]:
                complain(where, f"{source} can be written")
            inside.add(target)
        elif source not in (top.get("volumes") or {}):
            complain(where, f"no volume {source}")
        if not target.startswith("/"):
            complain(where, f"{target} is not absolute")


def look_at_service(name, service, base, top):
    where = f"service {name}"
    known(where, service, SERVICE)
    inside = {"/compose/rights.sh", "/compose/work.sh"} if "build" in service else set()  # as the Dockerfile copies them
    if "build" in service:
        look_at_build(where, service["build"], base)
    else:
        image_is_plain(where, service["image"])
    look_at_mounts(where, service.get("volumes", []), base, top, inside)
    for word in service.get("command", [])[:1]:
        if word not in inside or not os.access(os.path.join(base, os.path.basename(word)), os.X_OK):
            complain(where, f"the command {word} is not in it, or not executable")
    for kind in ("secrets", "networks"):
        for item in service.get(kind, []):
            if item not in top[kind]:
                complain(where, f"no {item} among the {kind}")
    for key, value in service.get("environment", {}).items():
        if "PASSWORD" in key and not (key.endswith("_FILE") and value.removeprefix("/run/secrets/") in service["secrets"]):
            complain(where, f"a password in the environment: {key}")
    for other, how in service.get("depends_on", {}).items():
        theirs = top["services"].get(other)
        if theirs is None:
            complain(where, f"depends on {other}, which is not there")
        elif how == {"condition": "service_healthy"}:
            if "healthcheck" not in theirs:
                complain(where, f"waits for the health of {other}, which has no check")
        elif how != {"condition": "service_completed_successfully"}:
            complain(where, f"unknown condition {how}")
    health = service.get("healthcheck")
    if health is not None:
        known(where, health, HEALTH)
        if health["test"][0] not in ("CMD", "CMD-SHELL"):
            complain(where, f"a healthcheck begins with CMD or CMD-SHELL, not {health['test'][0]}")


def main():
    *options, path = sys.argv[1:]
    with open(path) as file:
        top = yaml.safe_load(file)
    if options:
        # Compose makes one dollar of two.
        print(top["services"][options[1]]["healthcheck"]["test"][1].replace("$$", "$"))
        return 0
    base = os.path.dirname(path)
    known("the file", [key for key in top if not key.startswith("x-")], TOP)
    for name, service in top["services"].items():
        look_at_service(name, service, base, top)
    for kind in ("volumes", "secrets", "networks"):
        for item in top[kind]:
            if not any(item == used.split(":")[0] for service in top["services"].values() for used in service.get(kind, [])):
                complain("the file", f"nobody uses {item} of the {kind}")
    for name, secret in top["secrets"].items():
        if secret != {"file": f"./secrets/{name}"}:
            complain(f"secret {name}", "it is not where secrets.sh makes it")
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


sys.exit(main())
