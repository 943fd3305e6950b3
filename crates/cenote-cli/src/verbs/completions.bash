# bash completion of cenote, and of zpool and zfs where those are cenote.  -*- shell-script -*-

@COMMON@

_cenote() {
    local line=${COMP_LINE:0:COMP_POINT} words tool verb current at=1 choice left word count=0
    # Not by COMP_WORDS: there a name ends at its @.
    read -ra words <<<"${line}."
    current=${words[-1]%.}
    tool=${words[0]##*/}
    if [[ $tool == cenote ]]; then
        if ((${#words[@]} == 2)); then
            choice=$(_cenote_table cenote)
        else
            tool=${words[1]} at=2
        fi
    fi
    if [[ -z $choice ]]; then
        while [[ ${words[at]} == --embedded || ${words[at]} == -[dkT] ]]; do
            if [[ ${words[at]} == --embedded ]]; then at=$((at + 1)); else at=$((at + 2)); fi
        done
        verb=${words[at]-}
        case $tool in
        zpool | zfs)
            if ((${#words[@]} <= at + 1)); then
                choice=$(_cenote_table "$tool")
            elif [[ $current == -* ]]; then
                choice=$(_cenote_table "$tool $verb")
            else
                for word in "${words[@]:at+1:${#words[@]}-at-2}"; do
                    [[ $word == -* ]] || count=$((count + 1))
                done
                choice=$(_cenote_operands "$tool" "$verb" "${words[-2]}" "$count" "$current")
            fi
            ;;
        daemon) choice="start stop status run" ;;
        tunable)
            if ((${#words[@]} <= at + 1)); then
                choice="list get set"
            else
                choice=$(cenote tunable --embedded list -H 2>/dev/null | cut -f 1)
            fi
            ;;
        completions) choice="bash zsh fish" ;;
        esac
    fi
    # The shell replaces what is behind the last of these.
    left=${current%"${current##*[@:=]}"}
    COMPREPLY=()
    while read -r choice; do
        [[ -n $choice ]] && COMPREPLY+=("${choice#"$left"}")
    done < <(compgen -W "$choice" -- "$current")
    # A value follows.
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
    if ((${#COMPREPLY[@]} == 0)) && [[ $tool != zpool && $tool != zfs ]]; then
        compopt -o default 2>/dev/null
    fi
    return 0
}

complete -F _cenote cenote
for _cenote_name in zpool zfs; do
    if [[ $(readlink -f -- "$(type -P "$_cenote_name")" 2>/dev/null) == */cenote ]]; then
        complete -F _cenote "$_cenote_name"
    fi
done
unset _cenote_name
